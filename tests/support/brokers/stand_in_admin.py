# SPDX-License-Identifier: Apache-2.0
"""A small admin server that records requests and gives the test's answers, and a way to run the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from meridian_broker.cli import main
from meridian_broker.cli.programs import Sources, UpOptions


@dataclass
class Started:
    """Replaces the composition root and records what it was asked to start."""

    sources: list[tuple[Sources, int | None]] = field(default_factory=list)
    options: list[UpOptions] = field(default_factory=list)

    def broker(self, sources: Sources, supervisor: int | None) -> int:
        self.sources.append((sources, supervisor))
        return 0

    def secure_etcd(self, sources: Sources, root_password_file: Path, say: Callable[[str], None]) -> int:
        say(f"{sources.config}, {root_password_file}")
        return 0

    def await_etcd(self, sources: Sources) -> int:
        self.sources.append((sources, None))
        return 0

    def up(self, options: UpOptions, say: Callable[[str], None]) -> int:
        self.options.append(options)
        say("up")
        return 0


@dataclass
class AdminServer:
    """Answers by ``METHOD path``; any other request gets a 404."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def changes(self) -> list[tuple[str, Any]]:
        """Requests that change something, with their bodies."""
        return [(line, body) for line, body in self.asked if not line.startswith("GET ")]


@contextmanager
def serving() -> Iterator[AdminServer]:
    """A server on a free port."""
    book = AdminServer()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = f"{self.command} {self.path}"
            book.asked.append((key, json.loads(body) if body else None))
            book.tokens.add(self.headers.get("Authorization"))
            if target := book.redirects.get(key):
                self.send_response(307)
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status, value = book.answers.get(key, (404, {"reason": f"nothing at {self.path}"}))
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the base class looks for these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    book.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield book
    http.shutdown()
    thread.join()
    http.server_close()


def run(*arguments: str, started: Started | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(main.build(started or Started()), arguments)
