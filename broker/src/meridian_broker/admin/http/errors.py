# SPDX-License-Identifier: Apache-2.0
"""Every refusal leaves through here: a status and ``{"reason": one sentence}``, never a stack trace."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.requests import Refused
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.errors import (
    AlreadyExists,
    Contended,
    Invalid,
    NotEmpty,
    NotFound,
    Overtaken,
    QuotaReached,
)
from meridian_broker.metadata.limits import BadRequest
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable, VersionConflict
from meridian_broker.topics.errors import (
    CompactionRunning,
    ConsumerBusy,
    GapNotAcceptable,
    IncompatibleSchema,
    InvalidName,
    LimitReached,
    NotAllowed,
    NotInThisRegion,
    OffloadRunning,
    OtherKind,
    ProducerBusy,
    SubscriptionExists,
    SubscriptionInUse,
    SubscriptionNotFound,
    TopicError,
    TopicInUse,
    TopicNotFound,
    TopicTerminated,
    TopicUnreadable,
)
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUSES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (NotFound, 404),
    (TopicNotFound, 404),
    (SubscriptionNotFound, 404),
    (LimitReached, 412),
    (OtherKind, 409),
    (NotInThisRegion, 412),
    (NotAllowed, 405),
    (AlreadyExists, 409),
    (NotEmpty, 409),
    (Contended, 409),
    (Overtaken, 409),
    (VersionConflict, 409),
    (SubscriptionExists, 409),
    (CompactionRunning, 409),
    (OffloadRunning, 409),
    (IncompatibleSchema, 409),
    (QuotaReached, 412),
    (Invalid, 412),
    (InvalidName, 412),
    (InvalidTopicNameError, 412),
    (BadRequest, 412),
    (TopicInUse, 412),
    (SubscriptionInUse, 412),
    (ConsumerBusy, 412),
    (GapNotAcceptable, 412),
    (ProducerBusy, 412),
    (TopicTerminated, 412),
    (MetadataUnavailable, 503),
    (TopicUnreadable, 500),
    (TopicError, 503),
    (LedgerError, 500),
    (MetadataError, 500),
)
"""The first match counts: the specific come before the general."""


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into an answer."""
    try:
        return await handler(request)
    except Refused as refused:
        return _refusal(refused.status, str(refused))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = _refusal(error.status, _sentence(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:
        for kind, status in STATUSES:
            if isinstance(error, kind):
                if status >= 500:
                    log.warning("%s %s: %s", request.method, request.path, error)
                return _refusal(status, str(error))
        mark = secrets.token_hex(4)
        log.exception("%s %s failed (%s)", request.method, request.path, mark)
        return _refusal(500, f"internal error; the broker's log has the details at {mark}")


def _refusal(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)


def _sentence(request: web.Request, error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPNotFound):
        return f"there is nothing at {request.path}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{error.method} is not allowed on {request.path}, only {', '.join(sorted(error.allowed_methods))}"
    return error.reason
