# SPDX-License-Identifier: Apache-2.0
"""An Apache Pulsar region over its admin REST API: the positions of some topics' subscriptions.

Only topics that a Meridian region replicates to it are asked for, one by one: Pulsar sends a list of topics whole,
however long it is.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from meridian_verifier.align.facts import Place, PulsarCursor, PulsarTopic, Range
from meridian_verifier.source.client import RegionUnreachable, https, said

if TYPE_CHECKING:
    from meridian_verifier.source.regions import Region

READ_SECONDS: Final = 10.0
"""Time limit for each read from an answer."""
REGION_SECONDS: Final = 120.0
"""Time limit for all topics of one snapshot."""
ANSWER_BYTES: Final = 64 << 20
"""Maximum size of an answer: a million ranges."""
CHUNK_BYTES: Final = 1 << 16
TOGETHER: Final = 8
"""Topics asked for at once."""
_FAULTS: Final = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError)
_PLACE: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})", re.ASCII)
_RANGE: Final = re.compile(r"([(\[])(-?\d{1,19}):(-?\d{1,19})\.\.(-?\d{1,19}):(-?\d{1,19})([)\]])", re.ASCII)


class PulsarClient:
    """Talks to the region's admin port. Proxies from the environment are not used: regions are named by address."""

    def __init__(self, region: Region, token: str | None = None) -> None:
        """:param token: Pulsar's. Meridian's own is never sent there."""
        self.region = region
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def read(self, topics: Iterable[str]) -> dict[str, PulsarTopic]:
        """Those of the topics that the region has.

        :raises RegionUnreachable: no answer, a refusal, an answer of another form, or the time limit has passed.
        """
        deadline = time.monotonic() + REGION_SECONDS
        wanted = sorted(topics)
        try:
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), https(self.region), _SameScheme(self.region.admin_url)
            )
            with ThreadPoolExecutor(max_workers=TOGETHER) as pool:
                found = list(pool.map(lambda topic: self._topic(opener, topic, deadline), wanted))
        except _FAULTS as error:
            raise RegionUnreachable(self.region.name, f"not read at {self.region.admin_url}: {said(error)}") from error
        return {topic: told for topic, told in zip(wanted, found, strict=True) if told is not None}

    def _topic(self, opener: urllib.request.OpenerDirector, topic: str, deadline: float) -> PulsarTopic | None:
        stats = self._get(opener, f"{_path(topic)}/stats", deadline)
        inside = self._get(opener, f"{_path(topic)}/internalStats", deadline) if stats is not None else None
        return None if stats is None or inside is None else topic_of(stats, inside)

    def _get(self, opener: urllib.request.OpenerDirector, path: str, deadline: float) -> Any:
        """The answer's JSON; None: there is no such topic."""
        request = urllib.request.Request(self.region.admin_url + path, headers=self._headers)
        data = bytearray()
        try:
            with opener.open(request, timeout=READ_SECONDS) as response:
                while chunk := response.read(CHUNK_BYTES):
                    data += chunk
                    if len(data) > ANSWER_BYTES:
                        raise ValueError(f"the answer to {path} is longer than {ANSWER_BYTES >> 20} MiB")
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"reading its topics took longer than {REGION_SECONDS:g} s")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise
        return json.loads(data)


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Pulsar redirects a request to the broker that owns the topic. The token goes there too, so never without TLS if
    the first broker uses it."""

    max_redirections = 3

    def __init__(self, url: str) -> None:
        self._scheme = urlsplit(url).scheme

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != self._scheme:
            fp.close()
            raise OSError(f"it redirects to {newurl}: expected {self._scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _path(topic: str) -> str:
    space, _, name = topic.replace("://", "/", 1).rpartition("/")
    return f"/admin/v2/{quote(space)}/{quote(name, safe='')}"


def topic_of(stats: Mapping[str, Any], inside: Mapping[str, Any]) -> PulsarTopic:
    """From the answers to ``stats`` and ``internalStats``, the second asked after the first.

    :raises ValueError, KeyError, TypeError, AttributeError: the answers have another form.
    """
    replicated = {
        name: bool(one.get("isReplicated", one.get("replicated", False)))
        for name, one in stats.get("subscriptions", {}).items()
    }
    cursors = {unquote(name): one for name, one in inside.get("cursors", {}).items()}
    return PulsarTopic(
        _place(inside["lastConfirmedEntry"]),
        {name: bool(one["connected"]) for name, one in stats.get("replication", {}).items()},
        {
            name: PulsarCursor(
                is_replicated,
                _place(cursors[name]["markDeletePosition"]),
                _ranges(cursors[name]["individuallyDeletedMessages"]),
            )
            for name, is_replicated in replicated.items()
            if name in cursors
        },
    )


def _place(text: str) -> Place:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:50]!r} is not a position: expected LEDGER:ENTRY")
    return int(found[1]), int(found[2])


def _ranges(text: str) -> tuple[Range, ...]:
    """``[(12:3..12:5],[12:7..12:7]]`` as half-open ranges."""
    ranges = []
    for found in _RANGE.finditer(text):
        opens, closes = found[1], found[6]
        after, upto = (int(found[2]), int(found[3])), (int(found[4]), int(found[5]))
        if opens == "[":
            after = after[0], after[1] - 1
        if closes == ")":
            upto = upto[0], upto[1] - 1
        ranges.append((after, upto))
    return tuple(ranges)
