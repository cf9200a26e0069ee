# SPDX-License-Identifier: Apache-2.0
"""The admin REST API for the command line: one blocking request at a time, and two kinds of failure.

The difference matters to scripts. ``AdminRefused`` is an answer: the broker understood and refused (exit code 1).
``AdminUnreachable`` is no answer: no connection, a timeout, or a broker in trouble (2).

A broker that does not own the topic answers 307 with another broker's address. The standard library follows such a
redirect only for GET, so requests with a body are repeated here, as in Pulsar's own clients. Proxies from the
environment are not used: the API belongs inside the region's network.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REDIRECTS_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""An answer is held in memory whole; the longest real one lists the topics of a namespace."""
TIMEOUT_SECONDS: Final = 45.0
"""A deletion may wait for replicators and cursors to close, and the broker for another region that hangs: half a
minute at most, then it says so."""


class AdminRefused(Exception):
    """The broker refused. ``status`` is the HTTP status; the message is the broker's reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AdminUnreachable(Exception):
    """No usable answer: the message names the address and the failure."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin API of one region."""

    url: str
    """For example ``http://127.0.0.1:8080``."""
    token: str | None = None
    tls: ssl.SSLContext | None = None
    """TLS for ``https://``; None: the system's trust store."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Longest wait for a part of an answer."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The parsed answer of a GET, see ``request``."""
        return self.request("GET", path, query)

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = ...) -> Any:
        """Send one request and return its JSON, its text when it is not JSON, or None when it is empty.

        ``body`` is sent as JSON; leave it out to send none (``None`` is sent as ``null``).

        :raises AdminRefused: a 4xx answer.
        :raises AdminUnreachable: no connection, no answer in time, a 5xx answer, too many redirects.
        """
        where = self.url.rstrip("/") + path
        if query:
            where += "?" + urllib.parse.urlencode(query)
        for _ in range(REDIRECTS_MAX):
            status, location, answer = self._exchange(method, where, body)
            if status in (301, 302, 307, 308) and location:
                where = urllib.parse.urljoin(where, location)
                continue
            return _judge(self.url, status, answer)
        raise AdminUnreachable(f"{self.url}: the brokers redirect this request in a loop ({REDIRECTS_MAX} redirects)")

    def _exchange(self, method: str, where: str, body: Any) -> tuple[int, str | None, bytes]:
        headers = {"Accept": "application/json"}
        data = None
        if body is not ...:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            request = urllib.request.Request(where, data=data, headers=headers, method=method)
            https = urllib.request.HTTPSHandler(context=self.tls)
            opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}), https)
            try:
                with opener.open(request, timeout=self.timeout_seconds) as response:
                    return response.status, None, response.read(ANSWER_BYTES_MAX)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers.get("Location"), error.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise AdminUnreachable(
                f"no answer from {self.url}: {reason}. Is the region up? --url or MERIDIAN_URL selects another"
            ) from error


def _judge(url: str, status: int, answer: bytes) -> Any:
    parsed = _parse(answer)
    if status < 400:
        return parsed
    reason = parsed.get("reason") if isinstance(parsed, dict) else parsed
    sentence = f"{reason or http.client.responses.get(status, 'no reason given')} (HTTP {status})"
    if status < 500:
        raise AdminRefused(status, sentence)
    raise AdminUnreachable(f"{url} says: {sentence}")


def _parse(answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return json.loads(answer)
    except ValueError:
        return answer.decode(errors="replace").strip()


def read_token(file: Path) -> str:
    """The token in a file, without the line's end.

    :raises AdminUnreachable: the file cannot be read or is empty.
    """
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AdminUnreachable(f"cannot read the token file {file}: {error}") from error
    if not token or not token.isprintable():
        raise AdminUnreachable(f"the token file {file} does not hold a token")
    return token
