"""Starts the page: Gradio behind the guard, served by uvicorn on this computer only, in a thread of its own.

Nothing leaves the machine: no analytics, no share link, no run history, no remote fonts, no API pages.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import AppError, WrongUse
from ui.backend import Backend
from ui.guard import UPLOAD_LIMIT_BYTES, Guard, GuardConfig, new_token
from ui.strings import text

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from app.wiring import App
    from ui.uploads import Uploads

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost")
START_SECONDS = 60.0
QUEUE_POLL_SECONDS = 0.02


class RunningUI:
    """A page that is being served. address holds the token that lets a browser in; keep it out of logs."""

    def __init__(self, address: str, server: uvicorn.Server, ended: threading.Event, cleanup: list) -> None:
        self.address = address
        self._server = server
        self._ended = ended
        self._cleanup = cleanup

    def at_close(self, work: Callable[[], None]) -> None:
        """Has `work` done once the page is closed."""
        self._cleanup.append(work)

    def close(self) -> None:
        """Ends serving and empties the temporary folder. The app stays open. May be called twice."""
        self._server.should_exit = True
        if not self._ended.wait(10):  # a connection that will not end; the sockets must stay until uvicorn lets go
            self._server.force_exit = True
            self._ended.wait()
        while self._cleanup:
            self._cleanup.pop()()

    def wait(self) -> None:
        """Blocks until the page is closed; Ctrl-C comes through as KeyboardInterrupt.

        On an event: in Python 3.11 and 3.12 a Thread.join that is interrupted takes the thread for ended.
        """
        while not self._ended.wait(0.5):
            pass

    def __enter__(self) -> RunningUI:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(app: App, host: str = "127.0.0.1", port: int = 0, open_browser: bool = True) -> RunningUI:
    """Serves the page of an open App; returns once it answers. port 0 takes a free one. Raises WrongUse or AppError."""
    from ui.app_backend import AppBackend

    backend = AppBackend(app)
    running = serve(backend, host, port, open_browser)
    running.at_close(backend.viewer.close)
    return running


def serve(backend: Backend, host: str = "127.0.0.1", port: int = 0, open_browser: bool = False) -> RunningUI:
    """The same over any Backend."""
    if host not in LOOPBACK:
        raise WrongUse(text("launch.loopback_only", host=host), text("launch.loopback_hint"))
    listening = _listen(port)
    port = listening.getsockname()[1]
    temp = backend.temp_dir
    _empty(temp)
    prepare_environment(temp)

    import uvicorn

    from ui.uploads import Uploads

    uploads = Uploads(backend)
    token = new_token()
    hosts = frozenset(f"{name}:{port}" for name in LOOPBACK) | (frozenset(LOOPBACK) if port == 80 else frozenset())
    guarded = Guard(build_app(backend, uploads), GuardConfig(hosts, token, cookie_name=f"unabridged_{port}"))
    config = uvicorn.Config(
        guarded,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    ended = threading.Event()

    def serve_page() -> None:
        try:
            server.run(sockets=[listening])
        finally:
            ended.set()

    threading.Thread(target=serve_page, name="page", daemon=True).start()
    _wait_until_started(server, ended)
    address = f"http://127.0.0.1:{port}/?token={token}"
    running = RunningUI(address, server, ended, [lambda: _empty(temp), uploads.close, listening.close])
    if open_browser:
        webbrowser.open(address)
    return running


def build_app(backend: Backend, uploads: Uploads) -> FastAPI:
    """The page and our own static files, unguarded."""
    import gradio as gr
    from fastapi import FastAPI
    from starlette.staticfiles import StaticFiles

    from ui.chat import Chat
    from ui.exports import add_exports
    from ui.page import build_page
    from ui.parts import add_table_files
    from ui.viewer import add_page_pictures

    page = build_page(Chat(backend, uploads))
    # Gradio looks at its queue a thousand times a second while idle; the engine needs that time more.
    page._queue.sleep_when_free = QUEUE_POLL_SECONDS
    page._queue.progress_update_sleep_when_free = 0.5
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page_pictures(app, backend)
    add_exports(app, backend)
    app.mount("/ui", StaticFiles(directory=STATIC), name="ui")
    add_table_files(app, backend)
    system_fonts = ("ui-sans-serif", "system-ui", "sans-serif")
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name="127.0.0.1",
        show_error=False,
        max_file_size=UPLOAD_LIMIT_BYTES,
        ssr_mode=False,
        enable_monitoring=False,
        run_history=False,
        mcp_server=False,
        pwa=False,
        footer_links=[],
        favicon_path=str(STATIC / "icon.svg"),
        theme=gr.themes.Base(  # pyright: ignore[reportPrivateImportUsage]
            font=system_fonts, font_mono=("ui-monospace", "monospace")
        ),
        css_paths=[STATIC / "app.css", STATIC / "viewer.css", STATIC / "chooser.css"],
        head='<script src="/ui/app.js" defer></script><script src="/ui/viewer.js" defer></script>'
        '<script src="/ui/chooser.js" defer></script>',
        app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None},
    )


def prepare_environment(temp: Path) -> None:
    """Gradio reads these at import or later: nothing of them may come from the user's shell."""
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(temp)
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # Gradio's own statistics run pandas over all past events after every event, shown or not.
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = "1000000000"
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise AppError(text("launch.port_taken", port=port), text("launch.port_hint")) from error
    listening.listen(128)
    return listening


def _wait_until_started(server: uvicorn.Server, ended: threading.Event) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not server.started:
        if ended.is_set() or time.monotonic() > deadline:
            raise AppError(text("launch.failed"), text("launch.failed_hint"))
        time.sleep(0.02)


def _empty(folder: Path) -> None:
    """The folder exists, is ours alone and holds nothing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
