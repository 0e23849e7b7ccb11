"""A model hub on localhost with the two routes that a download uses, and the faults that real networks have.

GET /api/models/OWNER/NAME?blobs=true lists files with size and SHA-256; GET /OWNER/NAME/resolve/COMMIT/FILE gives the
bytes and understands Range.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """repositories: name -> {file: bytes}. cut_after: each download ends after so many bytes, this many times.

    ranges: the Range header of every download, None where there was none; tokens: Authorization headers seen.
    """

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()
        self.cut_after = 0
        self.cuts_left = 0
        self.corrupt = False
        self.ranges: list[str | None] = []
        self.tokens: list[str | None] = []
        self.paths: list[str] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[FakeHub]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.paths.append(path)
        self.tokens.append(request.headers.get("Authorization"))
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if listing and listing[1] in self.gated and not request.headers.get("Authorization"):
            self._error(request, 403, "GatedRepo")
        elif listing and listing[1] in self.repositories:
            self._send(
                request, 200, json.dumps(self._listing(listing[1])).encode(), {"Content-Type": "application/json"}
            )
        elif file and file[2] == COMMIT and file[3] in self.repositories.get(file[1], {}):
            self._bytes(request, self.repositories[file[1]][file[3]])
        else:
            self._error(request, 404, "RepoNotFound" if listing else "EntryNotFound")

    def _listing(self, name: str) -> dict:
        files = []
        for file, data in self.repositories[name].items():
            entry = {"rfilename": file, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if file.endswith((".gguf", ".safetensors")):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            files.append(entry)
        return {"_id": "1", "id": name, "sha": COMMIT, "siblings": files, "tags": [], "private": False}

    def _bytes(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = data[start:]
        if self.corrupt:
            body = bytes([body[0] ^ 1]) + body[1:]
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if wanted else {}
        if self.cuts_left and len(body) > self.cut_after:
            self.cuts_left -= 1
            self._send(request, 206 if wanted else 200, body[: self.cut_after], headers, claimed=len(body))
            request.close_connection = True
            request.connection.close()
        else:
            self._send(request, 206 if wanted else 200, body, headers)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str],
        claimed: int | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body) if claimed is None else claimed))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
            request.wfile.flush()

    def _error(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(request, status, json.dumps({"error": code}).encode(), {"X-Error-Code": code})
