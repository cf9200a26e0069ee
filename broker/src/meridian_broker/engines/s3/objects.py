# SPDX-License-Identifier: Apache-2.0
"""An `ObjectStore` in a bucket of S3, or of a store that speaks its protocol.

The client is ``obstore``. It takes credentials from the places that AWS's own tools use in a process without a shell:
the variables ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN``, a web identity (IRSA), the
container, the machine. It renews them, retries failed requests for a while, and keeps credentials out of its messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from meridian_broker.engines.s3.place import S3Place
from meridian_broker.ledgers.objects import (
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreAway,
    ObjectStoreError,
    ObjectStoreRefused,
)

try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store
except ImportError:
    raise ObjectStoreError("offloading to S3 needs the package obstore: install meridian-broker[offload]") from None

T = TypeVar("T")

REQUESTS_AT_ONCE: Final = 32
"""Each request holds at most one chunk in memory."""
STATUS: Final = re.compile(r"status code: (\d{3})")
"""The HTTP status in a message of the client, whose exceptions do not carry it for all requests."""
NOT_FOUND: Final = 404
DENIED: Final = (401, 403)
PASSING: Final = (408, 429)
"""The request may succeed later: it timed out, or came too soon."""
PATIENCE_SECONDS: Final = 5.0
"""Time allowed for connecting."""


class S3Objects:
    """See `meridian_broker.ledgers.objects.ObjectStore`."""

    def __init__(self, place: S3Place) -> None:
        """:raises ObjectStoreRefused: the endpoint is not a URL, or a file is not a certificate."""
        self._place = place
        self._places = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._is_closed = False
        try:
            self._store = _store(place)
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise ObjectStoreRefused(f"{self.where} cannot be used: {_first_line(error)}") from None

    @property
    def where(self) -> str:
        """The bucket, with the part of it, and the endpoint."""
        part = f"/{self._place.prefix}" if self._place.prefix else ""
        return f"bucket {self._place.bucket}{part} at {self._place.endpoint or 'AWS S3'}"

    async def put(self, key: str, data: bytes) -> None:
        """In one request."""
        await self._ask(f"write {key} to", lambda: obstore.put_async(self._store, key, data, use_multipart=False))

    async def read(self, key: str, first: int, length: int) -> bytes:
        """In one request."""
        if length < 0:
            return bytes(await self._ask(f"read {key} from", lambda: self._whole(key)))
        return bytes(
            await self._ask(
                f"read {key} from", lambda: obstore.get_range_async(self._store, key, start=first, length=length)
            )
        )

    async def _whole(self, key: str) -> Any:
        return await (await obstore.get_async(self._store, key)).bytes_async()

    async def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """A thousand at a time."""
        found = await self._ask(f"list {prefix} in", lambda: self._collect(prefix, after))
        return sorted(ObjectInfo(str(one["path"]), int(one["size"])) for one in found)

    async def _collect(self, prefix: str, after: str) -> Any:
        return await obstore.list(self._store, prefix, offset=after or None).collect_async()

    async def delete(self, keys: Sequence[str]) -> None:
        """A thousand at a time."""
        try:
            await self._ask("delete objects in", lambda: obstore.delete_async(self._store, list(keys)))
        except ObjectNotFound:
            pass  # one of them; the others are deleted

    async def close(self) -> None:
        """Refuse new requests; those under way continue."""
        self._is_closed = True

    async def _ask(self, doing: str, request: Callable[[], Awaitable[T]]) -> T:
        if self._is_closed:
            raise ObjectStoreAway(f"{self.where} was closed")
        seconds = PATIENCE_SECONDS + 2 * self._place.timeout_seconds
        async with self._places:
            try:
                async with asyncio.timeout(seconds):
                    return await request()
            except TimeoutError:
                raise ObjectStoreAway(f"could not {doing} {self.where} within {seconds:.0f} s") from None
            except (exceptions.BaseError, FileNotFoundError) as error:
                raise _ours(error, f"could not {doing} {self.where}") from None


def _store(place: S3Place) -> Any:
    options: Any = {
        "connect_timeout": timedelta(seconds=PATIENCE_SECONDS),
        "timeout": timedelta(seconds=place.timeout_seconds),
        "allow_http": place.endpoint.startswith("http://"),
    }
    if place.ca_file is not None:
        options["root_certificate"] = place.ca_file.read_bytes()
    named: dict[str, Any] = {"region": place.region} if place.region else {}
    if place.endpoint:
        named["endpoint"] = place.endpoint
    return S3Store(
        place.bucket,
        prefix=place.prefix or None,
        client_options=options,
        retry_config={
            "max_retries": place.max_attempts - 1,
            "retry_timeout": timedelta(seconds=place.timeout_seconds),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
        },
        **named,
    )


def _ours(error: Exception, doing: str) -> ObjectStoreError:
    said, text = _first_line(error), str(error)
    found = STATUS.search(text)
    status = int(found[1]) if found is not None else 0
    if "NoSuchBucket" in text:
        return ObjectStoreRefused(f"{doing}: there is no such bucket: create it ({said})")
    if isinstance(error, FileNotFoundError) or status == NOT_FOUND:
        return ObjectNotFound(f"{doing}: there is no such object")
    if status in DENIED:
        return ObjectStoreRefused(
            f"{doing}: the store refuses these credentials, or grants them too little: check them and the bucket's "
            f"policy ({said})"
        )
    if status // 100 in (3, 4) and status not in PASSING:
        return ObjectStoreRefused(f"{doing}: the store refuses the request: check endpoint and region ({said})")
    return ObjectStoreAway(f"{doing}: {said}")


def _first_line(error: Exception) -> str:
    """The first line of a message. After it, the client repeats the whole chain of causes."""
    return (str(error).strip() or repr(error)).splitlines()[0][:400]
