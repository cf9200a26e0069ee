# SPDX-License-Identifier: Apache-2.0
"""Lets a program in another language kill a region with SIGKILL (``POST /kill/REGION``) and restart it
(``/back/REGION``), or stop and continue its process (``/pause/REGION``, ``/resume/REGION``).

It answers when that is done: 204, or 500 and what went wrong.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from support.brokers.broker_process import RegionsProcess


class RegionControl:
    """Use it as a context manager: it answers until the end of the block."""

    def __init__(self, regions: RegionsProcess) -> None:
        actions = {
            "kill": regions.kill_region,
            "back": regions.bring_back,
            "pause": regions.pause_region,
            "resume": regions.resume_region,
        }

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                _, what, region = self.path.split("/")
                try:
                    actions[what](region)
                except Exception as error:
                    body = f"{type(error).__name__}: {error}".encode()
                    self.send_response(500)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                else:
                    self.send_response(204)
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the test reports what went wrong, from the answer."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="region-control")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
