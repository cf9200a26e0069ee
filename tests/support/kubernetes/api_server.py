# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Kubernetes API server as the verifier uses it: objects by path, over TLS, with the real limits."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.brokers.certificates import Authority

NAMESPACE = "meridian-system"
CONFIG_MAP_BYTES = 1 << 20
REQUEST_BYTES = 3 << 20
TOKEN = "a-token"


class ApiServer:
    """Objects by path, and injected refusals."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []
        self.refuses: Callable[[str, str], bool] = lambda _method, _path: False

    def config_maps(self) -> dict[str, Any]:
        """ConfigMaps by name."""
        return {path.rpartition("/")[2]: one for path, one in self.objects.items() if "/configmaps/" in path}

    def answer(self, method: str, target: str, body: bytes, headers: Any) -> tuple[int, Any]:
        path = urlsplit(target).path
        self.requests.append((method, path))
        if headers["Authorization"] != f"Bearer {TOKEN}" or self.refuses(method, path):
            return 403, {"message": "forbidden"}
        if method == "PATCH":
            query = parse_qs(urlsplit(target).query)
            assert headers["Content-Type"] == "application/apply-patch+yaml"
            assert query["fieldManager"], "server-side apply needs a field manager"
            if len(body) > REQUEST_BYTES:
                return 413, {"message": "the request is too large"}
            told = json.loads(body)
            if sum(len(value.encode()) for value in told["data"].values()) > CONFIG_MAP_BYTES:
                return 422, {"message": "Too long: must have at most 1048576 bytes"}
            self.objects[path] = told
            return 200, told
        if method == "DELETE":
            return (200, {}) if self.objects.pop(path, None) is not None else (404, {})
        return self.read(path, parse_qs(urlsplit(target).query))

    def read(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if path in self.objects:
            return 200, self.objects[path]
        items = [one for known, one in sorted(self.objects.items()) if known.startswith(f"{path}/")]
        if not items:
            return 404, {"message": "not found"}
        first, most = int(query.get("continue", ["0"])[0]), int(query.get("limit", ["1000000"])[0])
        more = str(first + most) if first + most < len(items) else ""
        return 200, {"metadata": {"continue": more}, "items": items[first : first + most]}


@contextmanager
def serving(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ApiServer, Path]]:
    """A server, and the directory of the service account that may call it."""
    api = ApiServer()
    pair = Authority(directory).issue("api", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, told = api.answer(self.command, self.path, body, self.headers)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_DELETE = _answer  # noqa: N815 (the server's names)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    account = directory / "account"
    account.mkdir()
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text(NAMESPACE)
    (account / "ca.crt").write_bytes((directory / "authority.pem").read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
    try:
        yield api, account
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
