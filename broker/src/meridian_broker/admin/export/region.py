# SPDX-License-Identifier: Apache-2.0
"""The export of a region of several brokers: the broker that is asked collects the parts of the others.

Each other broker exports the bundles that it owns as a snapshot of its own, a *part*. It is asked with the client's own
credentials, as if the client had asked each broker itself: a part shows no more than the client may export anyway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from meridian_broker.admin.export.copying import Copying, Names
from meridian_broker.admin.export.missing_bundles import BordersChanged, MissingBundles, parse_bundle
from meridian_broker.admin.export.plan import FORMAT, TABLES
from meridian_broker.admin.export.refusals import NotWhole
from meridian_broker.gateway.addresses import Addresses
from meridian_broker.gateway.broker_calls import BrokerAway, BrokerCalls
from meridian_broker.metadata.store import MetadataError
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.owner import BundleOwner, NotServing
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.ownership.transactions import NoSuchBundle, OwnedElsewhere

PATH: Final = "/meridian/v1/export"
PART_SECONDS: Final = 30.0
"""How long a broker may take for its part."""
RELEASE_SECONDS: Final = 5.0
"""The same for the end of a part, which also ends by itself."""
ROUNDS: Final = 10
"""How often to ask for a bundle that is moving."""
PATIENCE_SECONDS: Final = 6.0
"""After this time no broker is asked again: the verifier waits ten seconds, and should learn why there is no
snapshot."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds before each further round; the last value applies to all later rounds."""
BUNDLES_AT_ONCE: Final = 4000
"""Limit on bundles that one request names, as it has to fit into a body."""
PARTITIONS_MAX: Final = 1 << 20
"""Limit on partitions of one table in one part; more are not believed."""


@dataclass(frozen=True, slots=True)
class Part:
    """What another broker exports."""

    broker: str
    url: str
    """Address of its admin API."""
    name: str
    """Name of the snapshot there."""
    partitions: Mapping[str, int]

    def path(self, table: str = "") -> str:
        return f"{PATH}/{quote(self.name, safe='')}" + (f"/{quote(table, safe='')}" if table else "")


class Collecting:
    """One export of the whole region. ``parts`` has what was collected, even if it is not whole."""

    def __init__(self, owner: BundleOwner, calls: BrokerCalls, topics: str | None, authorization: str | None) -> None:
        """
        :param topics: the pattern of the request.
        :param authorization: the client's ``Authorization`` header.
        """
        self.parts: list[Part] = []
        self._owner = owner
        self._calls = calls
        self._topics = topics
        self._authorization = authorization
        self._bundles = MissingBundles(())
        self._problems: dict[Bundle, str] = {}

    async def collect(self, copying: Copying, names: Names) -> None:
        """Copy what this broker or nobody owns, and have the others export the rest.

        :raises NotWhole: a bundle could not be exported.
        :raises MetadataError: the metadata store did not answer.
        """
        wanted: list[Bundle] = []
        for namespace in names.namespaces:
            bundles = await self._owner.bundles(namespace)
            wanted += [bundle for bundle in bundles.every() if names.has(bundle)]
            await asyncio.sleep(0)  # there may be many namespaces
        self._bundles = MissingBundles(wanted)
        began = monotonic()
        for number in range(ROUNDS):
            if number:
                await asyncio.sleep(PAUSES[min(number, len(PAUSES)) - 1])
            await self._round(copying, names)
            if self._bundles.is_whole:
                return
            if monotonic() - began > PATIENCE_SECONDS:
                break
        first = min(self._bundles.missing)
        why = self._problems.get(first, "it keeps moving")
        more = f", and {len(self._bundles.missing) - 1} more" if len(self._bundles.missing) > 1 else ""
        raise NotWhole(f"the topics of bundle {first}{more} cannot be exported now: {why}; repeat the request")

    async def _round(self, copying: Copying, names: Names) -> None:
        try:
            self._bundles.follow(self._owner.view.bundles)
        except BordersChanged as error:
            raise NotWhole(f"during the export, bundle {error}: repeat the request") from None
        records: dict[str, BrokerRecord] = {}

        def owner_of(bundle: Bundle) -> str:
            if self._owner.term(bundle) is not None:
                return self._owner.name
            view = self._owner.view
            found = view.owner(bundle) or view.alive(view.wishes.get(bundle, ""))  # it is moving there
            if found is None:
                return ""
            records[found.broker] = found
            return found.broker

        asked = self._bundles.by_owner(owner_of)
        here = asked.pop(self._owner.name, []) if self._owner.name else []
        here += asked.pop("", [])
        asking = [
            asyncio.create_task(
                self._ask(records[broker], bundles[first : first + BUNDLES_AT_ONCE]),
                name="ask a broker for its part of an export",
            )
            for broker, bundles in asked.items()
            for first in range(0, len(bundles), BUNDLES_AT_ONCE)
        ]
        try:
            for bundle in here:
                await self._copy(copying, names, bundle)
            await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _copy(self, copying: Copying, names: Names, bundle: Bundle) -> None:
        try:
            await self._owner.acquire(bundle)
        except (OwnedElsewhere, NoSuchBundle, NotServing, MetadataError) as error:
            self._problems[bundle] = str(error)
        else:
            if await copying.bundle(bundle, names.within(bundle)):
                self._bundles.had((bundle,), (bundle,))

    async def _ask(self, broker: BrokerRecord, bundles: list[Bundle]) -> None:
        problem = ""
        try:
            url = admin_url(broker)
            body = {"topics": self._topics, "bundles": [str(bundle) for bundle in bundles]}
            data = json.dumps(body).encode()
            status, said = await self._calls.ask(url, "POST", PATH, data, self._authorization, seconds=PART_SECONDS)
            answer = json.loads(said)
            if status != 200:
                raise ValueError(f"it answered {status}: {str(answer['reason'])[:200]}")
            if "bundles" not in answer:
                raise ValueError("it runs a version that cannot export parts")
            got = [parse_bundle(text) for text in answer["bundles"]]
            part = _part(broker.broker, url, answer) if got else None
            self._bundles.had(bundles, got)
            if part is not None:
                self.parts.append(part)
        except (BrokerAway, NotWhole) as error:
            problem = str(error)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problem = str(error) or type(error).__name__
        for bundle in bundles:
            self._problems[bundle] = f"broker {broker.broker}: {problem}" if problem else "it keeps moving"


def _part(broker: str, url: str, answer: Mapping[str, Any]) -> Part:
    """:raises ValueError, KeyError, TypeError: the answer is not valid."""
    partitions = {table: answer["partitions"][table] for table in TABLES}
    if any(type(count) is not int or not 0 < count <= PARTITIONS_MAX for count in partitions.values()):
        raise ValueError("its numbers of partitions are not valid")
    if answer["format"] != FORMAT:
        raise ValueError(f"it exports format {answer['format']}, this broker {FORMAT}")
    return Part(broker, url, str(answer["snapshot"]), partitions)


def admin_url(broker: BrokerRecord) -> str:
    """Admin address of a broker of the region. :raises NotWhole: it has none."""
    addresses = Addresses.of(broker.addresses.get("", {}))
    url = addresses.admin_url or addresses.admin_url_tls
    if not url:
        raise NotWhole(f"broker {broker.broker} has no admin address: see advertisedListeners")
    return url


async def release(calls: BrokerCalls, parts: list[Part], authorization: str | None) -> None:
    """End parts, as far as their brokers can be asked: they end by themselves later."""

    async def end(part: Part) -> None:
        await calls.ask(part.url, "DELETE", part.path(), b"", authorization, seconds=RELEASE_SECONDS)

    await asyncio.gather(*map(end, parts), return_exceptions=True)
