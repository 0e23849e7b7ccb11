"""`unabridged run`: serves the page on this computer and opens it in the browser."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from app import environment
from app.commands.common import add_setting_flags, opened, settings_from
from app.errors import AppError, WrongUse

if TYPE_CHECKING:
    from app.settings import Settings
    from app.wiring import App

OTHER_STARTS_S = 60.0
CHANGES_HANDS_S = 2.0  # its file says nothing while it is given back


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "run",
        parents=[everywhere],
        help="start the app and open it in the browser",
        description="Starts the app. It prints one line with its address when it is ready; Ctrl-C ends it.\n"
        "If it is running already with this data folder, that one is opened.",
    )
    parser.add_argument("--port", type=int, metavar="N", default=0, help="port to serve on (default: a free one)")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to serve on (default: 127.0.0.1)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= 65535:
        raise WrongUse(f"There is no port {args.port}.", "Choose one from 1024 to 65535, or leave it out.")
    environment.clean()
    settings = settings_from(args)
    from storage import DataFolderBusy

    try:
        with _first_or_only(settings) as app:
            import ui

            with ui.launch(app, args.host, args.port, not args.no_browser) as running:
                if app.lock is not None:
                    app.lock.set_address(running.address)
                print(f"Unabridged is at {running.address}", flush=True)
                with _terminate_like_ctrl_c():
                    try:
                        running.wait()
                    finally:
                        if app.lock is not None:
                            app.lock.set_address("", starting=True)  # the page is going, the folder not yet free
    except DataFolderBusy as busy:
        return _open_running(busy.address, args.no_browser, busy)
    except KeyboardInterrupt:
        print("Unabridged has ended.", file=sys.stderr)
    return 0


@contextmanager
def _first_or_only(settings: Settings) -> Iterator[App]:
    """The app, opened to serve its page. Another one that is just starting is waited for: it has its page soon, or it
    ends and this one takes its place. DataFolderBusy if there is a running one."""
    from storage import DataFolderBusy

    began = time.monotonic()
    with ExitStack() as stack:
        while True:
            try:
                app = stack.enter_context(opened(settings, page=True))
                break
            except DataFolderBusy as busy:
                changing = busy.starting or (busy.pid is None and time.monotonic() < began + CHANGES_HANDS_S)
                if not changing or time.monotonic() > began + OTHER_STARTS_S:
                    raise
            time.sleep(0.1)
        yield app


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """While inside, SIGTERM ends the app as Ctrl-C does: answers and snapshots are stored first."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_running(address: str, no_browser: bool, busy: Exception) -> int:
    """A second start shows the first one's page; without a page there is nothing to show."""
    if not address:
        raise busy
    print(f"Unabridged is at {address}", flush=True)
    if not no_browser:
        import webbrowser

        if not webbrowser.open(address):
            raise AppError("No browser could be opened.", f"Open {address} yourself.")
    return 0
