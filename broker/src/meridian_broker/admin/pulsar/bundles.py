# SPDX-License-Identifier: Apache-2.0
"""Bundles of a namespace: their borders, splitting them, and unloading them, optionally to a given broker.

A request about a bundle is answered by the bundle's owner; other brokers redirect to it, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.owners import redirect
from meridian_broker.admin.http.requests import Refused, answer, body, done, flag, namespace_of, part, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar import brokers, dealing
from meridian_broker.gateway.addresses import Addresses, Place
from meridian_broker.metadata.errors import NotFound
from meridian_broker.ownership.bundles import Bundle, NotDivisible, place_of
from meridian_broker.ownership.owner import BundleOwner, NotServing
from meridian_broker.ownership.transactions import NoSuchBundle, OwnedElsewhere
from meridian_broker.topics.errors import TopicNotFound
from meridian_broker.topics.service import closing
from meridian_broker.wire.pulsar import topic_name

EQUAL_RANGES: Final = "range_equally_divide"
EQUAL_COUNTS: Final = "topic_count_equally_divide"
AT_POSITIONS: Final = "specified_positions_divide"
LARGEST: Final = "LARGEST"
"""Instead of a range: the bundle with the most topics."""


async def listed(request: web.Request) -> web.Response:
    """The namespace's bundles: the parts of the hash range into which its topics fall."""
    return answer(await dealing.shown(state(request), namespace_of(request)))


async def unload(request: web.Request) -> web.Response:
    """Close the topics of a bundle in an orderly way; another broker may own it afterwards.

    ``?destinationBroker=``: the broker that will, as named by ``/admin/v2/brokers``."""
    admin, owner = state(request), state(request).owner
    bundle = await _bundle(request)
    to = request.query.get("destinationBroker", "")
    if owner is None:
        if to and to != request.url.authority:
            raise Refused(412, f"region {admin.region} has no other broker: leave out ?destinationBroker")
        await _close_topics(admin, bundle)
        return done()
    chosen = brokers.named(admin, to) if to else None
    if to and (chosen is None or chosen.draining):
        raise Refused(412, f"?destinationBroker={to}: region {admin.region} has no such running broker")
    _check_owned(request, owner, bundle)
    if chosen is None:
        await owner.give_up(bundle)
        return done()
    if chosen.broker == owner.name and owner.term(bundle) is not None:
        raise Refused(412, f"?destinationBroker={to}: that broker already owns {bundle}")
    await _own(owner, bundle)
    if chosen.broker != owner.name:
        await owner.give_up(bundle, chosen.broker)
    return done()


async def split(request: web.Request) -> web.Response:
    """Split a bundle; its topics stay open. ``?unload=true``: its parts may then move to other brokers.

    ``?splitAlgorithmName=``: equal ranges, equal numbers of topics, or at the positions in the body."""
    admin, owner = state(request), state(request).owner
    if owner is None:
        raise Refused(501, f"region {admin.region} has one broker, which serves all bundles: they are not split")
    bundle = await _bundle(request)
    _check_owned(request, owner, bundle)
    borders = await _borders(request, bundle)
    await _own(owner, bundle)
    parts = []
    try:
        for border in borders:
            await owner.split(bundle, border)
            lower, bundle = bundle.parts(border)
            parts.append(lower)
    except NotDivisible as error:
        raise Refused(412, str(error)) from None
    except NotServing as error:
        raise Refused(503, str(error)) from None
    if flag(request, "unload"):
        for each in [*parts, bundle]:
            await owner.give_up(each)
    return done()


async def positions(request: web.Request) -> web.Response:
    """Where the topics of a bundle are in the hash range; ``?topics=``: some of them."""
    admin, namespace = state(request), namespace_of(request)
    bundle = await _bundle(request)
    asked = {name for text in request.query.getall("topics", []) for name in text.split(",") if name}
    places = {name: place async for name, place in _places(admin, bundle) if not asked or name in asked}
    return answer({"namespace": namespace, "bundle": bundle.range, "topicHashPositions": places})


# -- shared --------------------------------------------------------------------------------------------------------


async def _bundle(request: web.Request) -> Bundle:
    """The bundle in the path. :raises NotFound: there is no such namespace or bundle."""
    admin, text = state(request), part(request, "bundle")
    bundles = await dealing.of(admin, namespace_of(request))
    if text == LARGEST:
        counts = dict.fromkeys(bundles.every(), 0)
        for name in await in_namespace(admin, bundles.namespace):
            counts[bundles.at(place_of(topic_name.parse(name)))] += 1
        return max(counts, key=lambda one: (counts[one], one))
    if (found := bundles.named(text)) is None:
        raise NotFound(f"{bundles.namespace} has no bundle {text}: it has {', '.join(bundles.texts()[:9])}")
    return found


async def in_namespace(admin: AdminState, namespace: str) -> list[str]:
    """The namespace's persistent topics."""
    return await admin.service.registry.names(namespace)


async def _places(admin: AdminState, bundle: Bundle) -> AsyncIterator[tuple[str, int]]:
    async for name in in_turns(await in_namespace(admin, bundle.namespace)):
        if (place := place_of(topic_name.parse(name))) in bundle:
            yield name, place


def _check_owned(request: web.Request, owner: BundleOwner, bundle: Bundle) -> None:
    """Send the client to the bundle's owner, if that is another broker."""
    record = owner.view.owner(bundle)
    if record is not None and record.broker != owner.name:
        raise redirect(request, Place(Addresses.of(record.addresses.get("", {})), True))


async def _own(owner: BundleOwner, bundle: Bundle) -> None:
    """:raises Refused: it cannot be owned here now."""
    try:
        await owner.acquire(bundle)
    except NoSuchBundle as error:
        raise NotFound(str(error)) from None
    except (OwnedElsewhere, NotServing) as error:
        raise Refused(503, f"{bundle} is changing hands, repeat the request: {error}") from None


async def _borders(request: web.Request, bundle: Bundle) -> list[int]:
    """Where to split the bundle, ascending. :raises Refused: that cannot be determined, or is outside the bundle."""
    algorithm = request.query.get("splitAlgorithmName") or EQUAL_RANGES
    given = await body(request, default=None)
    try:
        if algorithm == EQUAL_RANGES:
            return [bundle.middle]
        if algorithm == EQUAL_COUNTS:
            return [bundle.median([place async for _, place in _places(state(request), bundle)])]
    except NotDivisible as error:
        raise Refused(412, str(error)) from None
    if algorithm != AT_POSITIONS:
        raise Refused(
            412, f"?splitAlgorithmName={algorithm}: expected {EQUAL_RANGES}, {EQUAL_COUNTS} or {AT_POSITIONS}"
        )
    if not isinstance(given, list) or not given or not all(type(one) is int for one in given):
        raise Refused(412, f"{AT_POSITIONS}: expected a list of positions as the body")
    borders = sorted(set(given))
    if not bundle.lower < borders[0] <= borders[-1] < bundle.upper:
        raise Refused(412, f"{AT_POSITIONS}: expected positions between the borders of {bundle}")
    return borders


async def _close_topics(admin: AdminState, bundle: Bundle) -> None:
    """Close a bundle's topics, in a region of one broker; each is opened again when needed."""
    prefix = f"persistent://{bundle.namespace}/"
    names = [topic_name.parse(name) async for name in in_turns(admin.service.topics) if name.startswith(prefix)]
    for name in names:
        if place_of(name) in bundle:
            try:
                await closing.unload(admin.service.opener, name)
            except TopicNotFound:
                continue  # deleted meanwhile
