# SPDX-License-Identifier: Apache-2.0
"""Which regions the verifier trusts: each through the authorities configured for it."""

from __future__ import annotations

import ssl
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from meridian_verifier.source.client import RegionClient, RegionUnreachable
from meridian_verifier.source.regions import Region, with_authorities
from support.brokers.certificates import Authority


class Nothing(BaseHTTPRequestHandler):
    """A region without an export."""

    def do_POST(self) -> None:
        self.server.asked.append(self.headers["Authorization"])  # type: ignore[attr-defined]
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A region with a certificate of authority ``east``. Directory ``trusted`` has this authority and another."""
    (tmp_path / "trusted").mkdir()
    pair = Authority(tmp_path, "east").issue("region")
    Authority(tmp_path, "west")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    server.asked = []  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(server: ThreadingHTTPServer, name: str, directory: Path) -> str:
    """Why a region of that name at this server could not be read."""
    (region,) = with_authorities([Region(name, f"https://127.0.0.1:{server.server_port}")], directory)
    with pytest.raises(RegionUnreachable) as refused:
        RegionClient(region, "secret").take()
    return str(refused.value)


def test_a_region_is_trusted_through_its_own_authority_or_else_the_default_one(
    served: ThreadingHTTPServer, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted"
    (trusted / "default").write_bytes((tmp_path / "west.pem").read_bytes())
    assert "certificate verify failed" in refusal(served, "us-east", trusted)
    (trusted / "us-east").write_bytes((tmp_path / "east.pem").read_bytes())
    assert "HTTP 404" in refusal(served, "us-east", trusted)
    assert "certificate verify failed" in refusal(served, "us-west", trusted), "not through another region's"
    (trusted / "default").write_bytes((tmp_path / "east.pem").read_bytes())
    assert "HTTP 404" in refusal(served, "us-west", trusted)
    assert served.asked == ["Bearer secret"] * 2, "an untrusted region gets no token"  # type: ignore[attr-defined]


def test_a_region_that_refuses_keeps_no_connection_open(served: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "trusted/us-east").write_bytes((tmp_path / "east.pem").read_bytes())
    (region,) = with_authorities([Region("us-east", f"https://127.0.0.1:{served.server_port}")], tmp_path / "trusted")
    client = RegionClient(region, "secret")
    with pytest.raises(RegionUnreachable) as refused:
        client.take()
    assert isinstance(refused.value.__cause__, urllib.error.HTTPError)
    assert refused.value.__cause__.closed


def test_unusable_authorities_are_named(served: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "trusted/us-east").write_text("no certificate")
    told = refusal(served, "us-east", tmp_path / "trusted")
    assert "trusted/us-east cannot be used" in told
    assert not served.asked  # type: ignore[attr-defined]
