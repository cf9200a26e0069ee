# SPDX-License-Identifier: Apache-2.0
"""Limits of a connection to an HTTP port: time, bytes, and a place among others.

All of them apply before a token is checked. Headers, bodies and answers have deadlines (``bounds/http.py``), and there
is a fixed number of places, in total and per address. A new connection that finds no free place takes the place of the
one that has been idle for longest, where "idle" includes half-sent headers: so holding connections open keeps nobody
else out, and a probe always gets its answer. A new connection is refused only if every other one is being served.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.bounds.http import (
    BODY_SECONDS,
    HEADER_BYTES,
    HEADER_SECONDS,
    HEADERS,
    IDLE_SECONDS,
    STALLED_SECONDS,
)
from meridian_broker.gateway.places import Hall

_NO_LOG: Any = None
"""Tells aiohttp not to log each request."""
_END_OF_HEADERS: Final = b"\r\n\r\n"
_REASONS: Final = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class HttpConnection(web.RequestHandler):
    """One connection: aiohttp's, within the limits."""

    def __init__(self, hall: Hall, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=_NO_LOG,
            keepalive_timeout=IDLE_SECONDS,
            max_headers=HEADERS,
            auto_decompress=False,
        )
        self.address = ""
        self.has_place = False
        self._hall = hall
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._reads_headers = True
        self._header_bytes = 0
        self._tail = b""
        self._refused = False

    # -- callbacks of the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        problem = self._hall.enter(self)
        if problem is not None:
            self._refused = True
            self.transport = cast("asyncio.Transport", transport)
            self._end(503, problem)
            return
        super().connection_made(transport)
        self._within(HEADER_SECONDS, 408, f"the headers did not arrive within {HEADER_SECONDS:.0f} s")

    def connection_lost(self, exc: BaseException | None) -> None:
        self._hall.leave(self)
        self._stop_timer()
        self._take_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._reads_headers and data:
            if not self._header_bytes:
                self._within(HEADER_SECONDS, 408, f"the headers did not arrive within {HEADER_SECONDS:.0f} s")
            if not self._count(data):
                self._end(431, f"the headers have more than {HEADER_BYTES} bytes")
                return
        super().data_received(data)

    def _count(self, data: bytes) -> bool:
        """Count bytes of headers. False: there are too many."""
        ends = (self._tail + data).find(_END_OF_HEADERS)
        if ends >= 0:
            self._header_bytes += ends
            self._reads_headers = False
            self._within(BODY_SECONDS, 408, f"the body did not arrive within {BODY_SECONDS:.0f} s")
        else:
            self._header_bytes += len(data)
            self._tail = data[1 - len(_END_OF_HEADERS) :]
        return self._header_bytes <= HEADER_BYTES

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self._loop.call_later(STALLED_SECONDS, self._abort)

    def resume_writing(self) -> None:
        self._take_on()
        super().resume_writing()

    def _take_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # -- requests ------------------------------------------------------------------------------------------------

    def begun(self, request: web.Request) -> None:
        """The headers have arrived, and the request is being served."""
        self._reads_headers = False
        self._hall.busy(self)
        request.content.on_eof(self._stop_timer)

    async def finish_response(self, request: Any, *rest: Any, **others: Any) -> Any:
        """Aiohttp calls this to send the answer."""
        try:
            return await super().finish_response(request, *rest, **others)
        finally:
            if request.content.is_eof():
                self._stop_timer()
                self._reads_headers, self._header_bytes, self._tail = True, 0, b""
                self._hall.idle(self)

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer something that is not a valid request; this includes an ``Expect`` that is not text, and a client that
        disconnected before 100-continue. Aiohttp would log a traceback for each. Exceptions of handlers never get
        here."""
        if status >= 500 and not isinstance(exc, (ConnectionError, UnicodeError)):
            return super().handle_error(request, status, exc, message)
        reason = {"reason": f"this is not an HTTP request: {message or exc}"[:200]}
        response = web.json_response(reason, status=400 if status >= 500 else status)
        response.force_close()
        return response

    # -- the end -------------------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """See ``gateway.places.Guest``."""
        self.force_close()

    def _within(self, seconds: float, status: int, reason: str) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._end, status, reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: int, reason: str) -> None:
        """Close, and say why unless part of another answer is on its way."""
        self._timer = None
        transport = self.transport
        if transport is None:
            return
        if not transport.get_write_buffer_size():
            body = f'{{"reason": "{reason}"}}'
            transport.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
        self.force_close()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@web.middleware
async def within_limits(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the connection that one of its requests is being served."""
    if isinstance(request.protocol, HttpConnection):
        request.protocol.begun(request)
    return await handler(request)
