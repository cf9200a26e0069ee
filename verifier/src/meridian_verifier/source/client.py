# SPDX-License-Identifier: Apache-2.0
"""One region's export over HTTP: take a snapshot, stream its tables, resume a broken stream where it stopped."""

from __future__ import annotations

import http.client
import io
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from meridian_verifier.align.synced_metadata import Synced
from meridian_verifier.source.tables import FORMAT

if TYPE_CHECKING:
    from meridian_verifier.source.regions import Region

SNAPSHOT_SECONDS: Final = 10.0
"""Time limit for a snapshot. A region that does not answer within it counts as unreachable."""
STREAM_SECONDS: Final = 60.0
"""Time limit for each read from a stream: a busy region first starts an encoder process, and limits their number."""
ATTEMPTS: Final = 3
"""Total attempts for a stream that breaks."""
BACKOFF_SECONDS: Final = 0.5
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FAULTS: Final = (OSError, http.client.HTTPException, pa.ArrowException, ValueError, KeyError)


class RegionUnreachable(Exception):
    """A region could not be asked. The message names it and the failure, and may be shown in the report."""

    def __init__(self, region: str, what: str) -> None:
        super().__init__(f"{region}: {what}")
        self.region = region


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, from the region's answer."""

    snapshot: str
    taken_ms: int
    partitions: Mapping[str, int]
    synced: Synced | None = None
    """Which metadata the region syncs with others; None: none."""


class RegionClient:
    """Talks to one region's admin port. Proxies from the environment are not used: regions are named by address."""

    def __init__(self, region: Region, token: str | None = None) -> None:
        self.region = region
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener: urllib.request.OpenerDirector | None = None
        self._urls = region.admin_urls
        """The broker that answered last comes first."""

    def take(self, topics: str | None = None) -> Taken:
        """Take a snapshot.

        :raises RegionUnreachable: no answer, a refusal, or an answer in another format.
        """
        body = json.dumps({"topics": topics} if topics else {}).encode()
        try:
            with self._open("/meridian/v1/export", body, SNAPSHOT_SECONDS) as response:
                answer = json.loads(response.read())
            if answer["format"] != FORMAT:
                raise ValueError(
                    f"export format {answer['format']}, this verifier reads {FORMAT}: use the verifier of that version"
                )
            partitions = {str(table): int(count) for table, count in answer["partitions"].items()}
            return Taken(str(answer["snapshot"]), int(answer["taken_ms"]), partitions, _synced(answer.get("metadata")))
        except _FAULTS as error:
            raise RegionUnreachable(
                self.region.name, f"no snapshot from {self.region.admin_url}: {said(error)}"
            ) from error

    def rows(self, snapshot: str, table: str, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. A stream that breaks is resumed after the rows already received.

        :raises RegionUnreachable: it broke ``ATTEMPTS`` times.
        """
        received = 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                for batch in self._stream(snapshot, table, partition, received):
                    yield batch
                    received += batch.num_rows
                return
            except _FAULTS as error:
                gone = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if gone or attempt == ATTEMPTS:
                    raise RegionUnreachable(
                        self.region.name, f"table {table} ended early, after {received} rows: {said(error)}"
                    ) from error
            time.sleep(BACKOFF_SECONDS * attempt)

    def _stream(self, snapshot: str, table: str, partition: int, after: int) -> Iterator[pa.RecordBatch]:
        path = f"/meridian/v1/export/{snapshot}/{table}?partition={partition}&after={after}"
        with self._open(path, None, STREAM_SECONDS) as response:
            watched = _Watched(response)
            with pa.ipc.open_stream(pa.PythonFile(watched, mode="r")) as reader:
                yield from reader
            response.read(1)
            if watched.tail != _END_OF_STREAM:
                raise OSError("the stream ended before its end mark")

    def _open(self, path: str, body: bytes | None, seconds: float) -> Any:
        """The answer of the first broker of the region that can be reached."""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._opener is None:
            self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https(self.region))
        for left in range(len(self._urls) - 1, -1, -1):
            request = urllib.request.Request(self._urls[0] + path, data=body, headers=headers)
            try:
                return self._opener.open(request, timeout=seconds)
            except urllib.error.HTTPError as refused:
                refused.close()  # the error outlives this call: it must not keep its connection open
                raise
            except OSError:
                self._urls = [*self._urls[1:], self._urls[0]]
                if not left:
                    raise
        raise AssertionError("a region without an address")


def https(region: Region) -> urllib.request.HTTPSHandler:
    """Trusts the region's authorities. :raises OSError: they cannot be used."""
    file = region.ca_file or None
    try:
        return urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=file))
    except OSError as error:  # ssl.SSLError is an OSError
        raise OSError(f"the certificate authorities in {file} cannot be used: {error}") from error


def _synced(said: Any) -> Synced | None:
    if said is None:
        return None
    return Synced(str(said["topic"]), frozenset(map(str, said["folders"])), frozenset(map(str, said["regions"])))


class _Watched(io.RawIOBase):
    """Passes bytes on and remembers the last eight: Arrow takes a stream cut between two batches for a complete one."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.tail = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._response.read(None if size < 0 else size)
        self.tail = (self.tail + data[-8:])[-8:]
        return data


def read_token(path: str | None) -> str | None:
    """The token in a file, without the line ending; None without a file."""
    return Path(path).read_text(encoding="utf-8").strip() if path else None


def said(error: Exception) -> str:
    """What went wrong, for people."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, http.client.IncompleteRead):
        return "the region aborted the answer; its log says why"
    return str(error) or type(error).__name__
