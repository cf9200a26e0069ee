# SPDX-License-Identifier: Apache-2.0
"""A program that ``meridian up`` can run in a broker's place, to behave in ways the real one does not.

``python stand_in_broker.py MODE --config FILE --supervisor PID`` where MODE is ``good`` (healthy, ends on SIGTERM),
``dies`` (says why and exits 3 at once) or ``stubborn`` (healthy, ignores SIGTERM).
"""

from __future__ import annotations

import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from meridian_broker.server.lifeline import die_with_parent
from meridian_broker.server.settings import load


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/admin/v2/brokers/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


def _run(mode: str, config: Path, supervisor: int) -> int:
    die_with_parent(supervisor)
    settings = load(config, (), {})
    if mode == "dies":
        sys.stderr.write("the disk is made of cheese\n")
        return 3
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else lambda *_: sys.exit(0))
    HTTPServer((settings.network.bind_address, settings.network.web_service_port), _Health).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], Path(sys.argv[3]), int(sys.argv[5])))
