"""The wall before the page: a pure ASGI wrapper that lets only this launch's browser in.

A program on 127.0.0.1 can be reached by every web page the user visits (DNS rebinding, cross-site posts) and by every
user of the machine. So each request, to any route, must name exactly our address (else 421), come from our own page
(else 421), and carry this launch's token (else 401). Bodies are limited (413). Every answer carries a strict
Content-Security-Policy; scripts run only from our own files or with the nonce of the page they stand in.

Knows nothing of Gradio and nothing of the app. The token is never logged.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ui.strings import text

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD_LIMIT_BYTES = 500 * 1024 * 1024
OTHER_LIMIT_BYTES = 4 * 1024 * 1024
# A multipart body is a little larger than the files in it.
MULTIPART_SLACK_BYTES = 1024 * 1024

FIXED_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)


def content_security_policy(nonce: str) -> str:
    """Styles stay 'unsafe-inline' because Gradio writes them at run time; scripts need our files or the nonce."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "manifest-src 'self'",
            "worker-src 'self'",
            "base-uri 'self'",
            "form-action 'none'",
            "frame-src 'none'",
            "frame-ancestors 'none'",
            "object-src 'none'",
        )
    )


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """hosts: every value of the Host header that is ours, port included. token: this launch's secret.

    upload_path: the one path where bodies up to upload_limit bytes are welcome; elsewhere other_limit bytes.
    """

    hosts: frozenset[str]
    token: str
    cookie_name: str = "unabridged"
    upload_path: str = "/gradio_api/upload"
    upload_limit: int = UPLOAD_LIMIT_BYTES
    other_limit: int = OTHER_LIMIT_BYTES

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("hosts: got none, need at least one")
        if len(self.token) < 32:
            raise ValueError(f"token: got {len(self.token)} characters, need 32 or more")
        if self.upload_limit < 1 or self.other_limit < 1:
            raise ValueError("limits: got less than 1 byte, need at least 1")


def new_token() -> str:
    """256 random bits, safe in a URL."""
    return secrets.token_urlsafe(32)


class Guard:
    """Wraps an ASGI app; see the module's own text for the rules."""

    def __init__(self, app: ASGIApp, config: GuardConfig) -> None:
        self.app = app
        self.config = config
        self.origins = frozenset(f"http://{host}" for host in config.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        if not self._is_ours(scope, headers):
            await _refuse(send, 421, text("guard.misdirected"))
            return
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        offered = [value for name, value in query if name == "token"]
        if offered and scope["method"] in ("GET", "HEAD") and self._is_token(offered[-1]):
            await self._welcome(send, scope["path"], [(name, value) for name, value in query if name != "token"])
            return
        if not self._is_token(_cookie(headers, self.config.cookie_name)):
            await _refuse(send, 401, text("guard.no_token"))
            return
        limit = self._limit(scope["path"])
        if _declared_length(headers) > limit:
            await _refuse(send, 413, text("guard.too_large", megabytes=limit // 2**20))
            return
        await self._pass_on(scope, receive, send, limit)

    def _is_ours(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> bool:
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or hosts[0].decode("latin-1") not in self.config.hosts:
            return False
        if any(origin.decode("latin-1") not in self.origins for origin in headers.get(b"origin", [])):
            return False
        # Cookies do not tell ports apart, so a page of another local server would send ours along.
        foreign = any(site not in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", []))
        opening = scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == [b"navigate"]
        return not foreign or opening

    def _is_token(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode(), self.config.token.encode())

    def _limit(self, path: str) -> int:
        if path.rstrip("/") == self.config.upload_path:
            return self.config.upload_limit + MULTIPART_SLACK_BYTES
        return self.config.other_limit

    async def _welcome(self, send: Send, path: str, query: list[tuple[str, str]]) -> None:
        # One leading slash only: "//evil.example" would send the browser to another host.
        target = "/" + path.lstrip("/\\")
        if query:
            target += "?" + urlencode(query)
        cookie = f"{self.config.cookie_name}={self.config.token}; Path=/; HttpOnly; SameSite=Strict"
        extra = [(b"location", target.encode("ascii", "replace")), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, b"", extra)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        nonce = secrets.token_urlsafe(16)
        body = _BodyLimit(receive, limit)
        state = {"html": False, "replaced": False}

        async def guarded_send(message: Message) -> None:
            if state["replaced"]:
                return
            if message["type"] == "http.response.start":
                if body.exceeded:
                    state["replaced"] = True
                    await _refuse(send, 413, text("guard.too_large", megabytes=limit // 2**20))
                    return
                kept = [(name.lower(), value) for name, value in message.get("headers", [])]
                state["html"] = any(n == b"content-type" and v.startswith(b"text/html") for n, v in kept)
                dropped = {name for name, _ in FIXED_HEADERS} | {b"content-security-policy", b"server"}
                if state["html"]:
                    dropped |= {b"content-length", b"cache-control", b"etag"}
                kept = [(name, value) for name, value in kept if name not in dropped]
                message = {**message, "headers": [*kept, *_security_headers(nonce, no_store=state["html"])]}
            elif message["type"] == "http.response.body" and state["html"]:
                marked = message.get("body", b"").replace(b"<script", f'<script nonce="{nonce}"'.encode())
                message = {**message, "body": marked}
            await send(message)

        # Uncompressed, so that the nonce can be written into the page; on loopback compression only costs time.
        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, body.receive, guarded_send)


class _BodyLimit:
    """Counts the body as it streams in; past the limit the app below sees a client that went away."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self.exceeded = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self.exceeded = True
                return {"type": "http.request", "body": b"", "more_body": False}
        return message


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def _cookie(headers: dict[bytes, list[bytes]], name: str) -> str:
    for line in headers.get(b"cookie", []):
        try:
            jar = SimpleCookie(line.decode("latin-1"))
        except CookieError:
            continue
        if name in jar:
            return jar[name].value
    return ""


def _declared_length(headers: dict[bytes, list[bytes]]) -> int:
    lengths = headers.get(b"content-length", [])
    return max((int(value) for value in lengths if value.isdigit()), default=0)


def _security_headers(nonce: str, no_store: bool) -> list[tuple[bytes, bytes]]:
    policy = (b"content-security-policy", content_security_policy(nonce).encode())
    return [*FIXED_HEADERS, policy, *([(b"cache-control", b"no-store")] if no_store else [])]


async def _refuse(send: Send, status: int, sentence: str) -> None:
    await _answer(send, status, (sentence + "\n").encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _answer(send: Send, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [*_security_headers(secrets.token_urlsafe(16), no_store=True), *extra]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
