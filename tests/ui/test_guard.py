"""The wall before the page: every route, every way of being foreign, and nothing written by those who are refused."""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

import httpx
import pytest
from fake_app import FakeBackend

from app.errors import AppError, WrongUse
from ui.guard import Guard, GuardConfig, content_security_policy, new_token

HOST = "127.0.0.1:5555"
TOKEN = new_token()


async def echo(scope, receive, send) -> None:
    """Reads the whole body, then answers with its length; /page is HTML with two scripts."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    is_page = scope["path"] == "/page"
    body = b"<script>1</script><script src=a></script>" if is_page else str(length).encode()
    kind = b"text/html; charset=utf-8" if is_page else b"text/plain"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"server", b"secret")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def config(**changes) -> GuardConfig:
    return GuardConfig(**{"hosts": frozenset({HOST}), "token": TOKEN, **changes})


def request(
    method: str, url: str, *, app=echo, guard: GuardConfig | None = None, known=True, **kwargs
) -> httpx.Response:
    headers = {"host": HOST, **kwargs.pop("headers", {})}
    cookies = {"unabridged": TOKEN} if known else {}

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(app, guard or config()))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", cookies=cookies) as client:
            return await client.request(method, url, headers=headers, **kwargs)

    return asyncio.run(send())


@pytest.fixture(scope="module")
def real_app(tmp_path_factory):
    """The real Gradio app, unguarded, and its temporary folder."""
    from ui.server import build_app, prepare_environment
    from ui.uploads import Uploads

    folder = tmp_path_factory.mktemp("guard")
    backend = FakeBackend(folder)
    prepare_environment(folder)
    return build_app(backend, Uploads(backend)), folder


def routes_of(app) -> list[str]:
    paths = {
        "/",
        "/config",
        "/gradio_api/info",
        "/gradio_api/upload",
        "/gradio_api/queue/join",
        "/theme.css",
        "/gradio_api/queue/data",
        "/ui/app.js",
        "/ui/app.css",
        "/nowhere",
        "/gradio_api/file=/etc/passwd",
    }
    for route in app.routes:
        for inner in getattr(getattr(route, "app", None), "routes", [route]):
            path = getattr(inner, "path", "")
            if path:
                paths.add(path.replace("{path:path}", "x").replace("{", "").replace("}", ""))
    return sorted(paths)


def test_every_route_refuses_foreign_host_origin_and_missing_token(real_app) -> None:
    app, _ = real_app
    paths = routes_of(app)
    assert len(paths) > 25
    for path in paths:
        for method in ("GET", "POST", "OPTIONS"):
            assert request(method, path, app=app, headers={"host": "evil.example"}).status_code == 421, path
            assert request(method, path, app=app, headers={"origin": "http://evil.example"}).status_code == 421, path
            assert request(method, path, app=app, known=False).status_code == 401, path


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:5556",
        "127.0.0.1:5555.",
        "127.0.0.1.:5555",
        "localhost:5555.evil.example",
        "[::1]:5555",
        "evil.example:5555",
        "0.0.0.0:5555",
        "127.1:5555",
        "",
    ],
)
def test_host_must_be_exactly_ours(host: str) -> None:
    assert request("GET", "/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        f"https://{HOST}",
        "http://127.0.0.1",
        "http://127.0.0.1:5556",
        f"http://{HOST}.evil.example",
        "",
    ],
)
def test_origin_must_be_ours(origin: str) -> None:
    assert request("POST", "/", headers={"origin": origin}).status_code == 421
    assert request("POST", "/", headers={"origin": f"http://{HOST}"}).status_code == 200


def test_requests_started_by_other_sites_are_refused_without_an_origin_too() -> None:
    assert request("GET", "/", headers={"sec-fetch-site": "same-site"}).status_code == 421
    assert request("GET", "/", headers={"sec-fetch-site": "cross-site"}).status_code == 421
    assert request("GET", "/", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    opening = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert request("GET", "/", headers=opening).status_code == 200
    assert request("POST", "/", headers=opening).status_code == 421


def test_two_host_headers_are_refused() -> None:
    sent = []

    async def call() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", HOST.encode())] * 2}

        async def send(message) -> None:
            sent.append(message)

        await Guard(echo, config())(scope, None, send)

    asyncio.run(call())
    assert sent[0]["status"] == 421


def test_websockets_are_closed() -> None:
    sent = []

    async def call() -> None:
        async def send(message) -> None:
            sent.append(message)

        await Guard(echo, config())({"type": "websocket", "path": "/", "headers": []}, None, send)

    asyncio.run(call())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_foreign_upload_writes_nothing_and_ours_does(real_app) -> None:
    app, folder = real_app
    files = {"files": ("a.txt", b"hello", "text/plain")}
    before = sorted(folder.rglob("*"))
    for foreign in ({"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}):
        assert request("POST", "/gradio_api/upload", app=app, files=files, headers=foreign).status_code == 421
    assert request("POST", "/gradio_api/upload", app=app, files=files, known=False).status_code == 401
    assert sorted(folder.rglob("*")) == before
    answer = request("POST", "/gradio_api/upload", app=app, files=files, headers={"origin": f"http://{HOST}"})
    assert answer.status_code == 200
    assert Path(answer.json()[0]).is_relative_to(folder)


def test_nothing_outside_the_temporary_folder_is_served(real_app) -> None:
    app, _ = real_app
    for path in ("/etc/passwd", "../../etc/passwd", str(Path(__file__).resolve()), "pyproject.toml"):
        assert request("GET", f"/gradio_api/file={path}", app=app).status_code in (403, 404), path
    for path in ("/docs", "/redoc", "/openapi.json", "/monitoring", "/gradio_api/runs"):
        assert request("GET", path, app=app).status_code in (403, 404), path


def test_the_token_opens_the_page_once_and_leaves_the_address() -> None:
    answer = request("GET", f"/?token={TOKEN}&c=abc", known=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?c=abc"
    cookie = answer.headers["set-cookie"]
    assert f"unabridged={TOKEN}" in cookie
    for flag in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert flag in cookie
    assert "Domain" not in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "///evil.example/x"])
def test_the_way_in_never_leads_to_another_host(path: str) -> None:
    sent = []

    async def call() -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": f"token={TOKEN}".encode(),
            "headers": [(b"host", HOST.encode())],
        }

        async def send(message) -> None:
            sent.append(message)

        await Guard(echo, config())(scope, None, send)

    asyncio.run(call())
    assert dict(sent[0]["headers"])[b"location"].startswith(b"/evil.example")


@pytest.mark.parametrize(
    "offered",
    ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.swapcase(), "ü"],
    ids=["none", "other", "cut", "longer", "swapped", "umlaut"],  # the token is drawn anew in each process
)
def test_a_wrong_token_is_refused_in_words(offered: str) -> None:
    answer = request("GET", "/", params={"token": offered}, known=False)
    assert answer.status_code == 401
    assert "address that Unabridged printed" in answer.text
    assert TOKEN not in answer.text
    assert request("GET", "/", known=False, headers={"cookie": f"unabridged={TOKEN[:-1]}"}).status_code == 401


def test_every_answer_carries_the_security_headers() -> None:
    answers = [request("GET", "/"), request("GET", "/", known=False), request("GET", "/", headers={"host": "evil"})]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "img-src 'self' data: blob:" in policy
        assert "connect-src 'self'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers.get("server") != "secret"


def test_scripts_of_a_page_get_its_own_nonce() -> None:
    first, second = request("GET", "/page"), request("GET", "/page")
    nonce = first.headers["content-security-policy"].split("'nonce-")[1].split("'")[0]
    assert first.text.count(f'nonce="{nonce}"') == 2
    assert nonce not in second.text
    assert first.headers["cache-control"] == "no-store"
    assert content_security_policy("n").count("nonce-n") == 1


def test_bodies_over_the_limit_get_413_declared_or_not() -> None:
    small = config(upload_limit=1000, other_limit=100)
    assert request("POST", "/x", guard=small, content=b"x" * 100).text == "100"
    assert request("POST", "/x", guard=small, content=b"x" * 101).status_code == 413

    async def chunks():
        for _ in range(30):
            yield b"x" * 10

    answer = request("POST", "/x", guard=small, content=chunks())
    assert answer.status_code == 413
    assert "content-security-policy" in answer.headers
    assert request("POST", "/gradio_api/upload", guard=small, content=b"x" * 900).text == "900"
    over = 1000 + 1024 * 1024 + 1
    assert request("POST", "/gradio_api/upload", guard=small, headers={"content-length": str(over)}).status_code == 413
    assert request("POST", "/gradio_api/upload", headers={"content-length": str(502 * 2**20)}).status_code == 413


def test_config_refuses_what_would_open_the_door() -> None:
    with pytest.raises(ValueError, match="token: got 3"):
        GuardConfig(frozenset({HOST}), "abc")
    with pytest.raises(ValueError, match="hosts"):
        GuardConfig(frozenset(), TOKEN)
    assert len({new_token() for _ in range(50)}) == 50
    assert len(TOKEN) >= 43


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_only_loopback_is_served(tmp_path: Path, host: str) -> None:
    import ui

    with pytest.raises(WrongUse) as refused:
        ui.serve(FakeBackend(tmp_path / "t"), host=host)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "t").exists()


def test_a_served_page_is_private_quiet_and_cleans_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import socket

    import ui

    temp = tmp_path / "temp"
    (temp / "left").mkdir(parents=True)
    (temp / "left" / "over.txt").write_text("from a killed run")
    with caplog.at_level(logging.DEBUG):
        running = ui.serve(FakeBackend(temp))
        try:
            assert list(temp.iterdir()) == []
            assert stat.S_IMODE(temp.stat().st_mode) == 0o700
            base, token = running.address.split("/?token=")
            assert httpx.get(base).status_code == 401
            with httpx.Client(follow_redirects=True) as client:
                page = client.get(running.address)
                assert page.status_code == 200
                assert token not in str(page.url)
                assert token not in page.text
                files = {"files": ("a.txt", b"hello")}
                assert client.post(f"{base}/gradio_api/upload", files=files).status_code == 200
            assert any(temp.iterdir())
            port = int(base.rsplit(":", 1)[1])
            with pytest.raises(AppError, match="in use"):
                ui.serve(FakeBackend(tmp_path / "other"), port=port)
            others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
            for address in others - {"127.0.0.1"}:
                if not address.startswith("127."):
                    with pytest.raises(OSError), socket.create_connection((address, port), timeout=1):
                        pass
        finally:
            running.close()
    running.close()
    assert list(temp.iterdir()) == []
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert not any(token in message for message in ours)
    with pytest.raises(httpx.ConnectError):
        httpx.get(base)
