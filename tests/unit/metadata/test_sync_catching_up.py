# SPDX-License-Identifier: Apache-2.0
"""What a comparison with a peer accepts, reports as a conflict, leaves to an administrator, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.catching_up import compared, decide_for, take
from meridian_broker.metadata.sync.choice import (
    CONFIGURATION_EVENT_TOPIC,
    EVENT_TOPIC,
    MAX_CLOCK_SKEW,
    SCOPES,
    TOMBSTONE_RETENTION,
    SyncChoice,
)
from meridian_broker.metadata.sync.events import Changes, Event
from meridian_broker.metadata.sync.stamped import Stamped, canonical
from meridian_broker.metadata.sync.standing import NameTaken, PeerState, Standing, off_clock
from meridian_broker.positions.clock import Stamp
from support.worlds.sync_store import StoreInMemory, WaitingInMemory
from support.worlds.sync_world import (
    PeerInMemory,
    SyncWorld,
    is_synced,
    known_in,
    one_after_another,
    tenant_role,
)

TENANT = keys.tenant("t")
ROLE = tenant_role("t", "r")


@pytest.fixture
def world() -> SyncWorld:
    return SyncWorld(["us", "eu"])


def write(world: SyncWorld, region: str, value: object, path: str = ROLE) -> None:
    world.now_ms += 1000
    assert world.finish(region, world.write(region, {TENANT: {}, path: value}))


def deliver_all(world: SyncWorld, region: str, source: str) -> None:
    for index in world.deliverable(region, source):
        world.finish(region, world.deliver(region, source, index))


def test_a_write_the_peer_did_not_know_is_a_conflict(world: SyncWorld) -> None:
    write(world, "us", 1)
    write(world, "eu", 2)
    world.finish("us", world.catch_up("us", "eu"))
    conflict = world.conflicts("us")[ROLE]
    assert (conflict.lost.value, conflict.lost.stamp.region) == (1, "us")
    assert (conflict.won.value, conflict.won.stamp.region) == (2, "eu")


@pytest.mark.parametrize("has_heard_again", [False, True])
def test_what_a_restored_peer_once_heard_it_may_not_know_any_longer(world: SyncWorld, has_heard_again: bool) -> None:
    exchange_marks(world)
    copy = world.regions["us"].store.copy()
    write(world, "eu", 1)
    exchange_marks(world)
    world.crash("us")
    world.regions["us"].store = copy
    world.start("us")
    write(world, "us", 2)  # before it has compared itself with any region
    if has_heard_again:
        world.finish("us", world.catch_up("us", "eu"))
        world.finish("eu", world.mark("eu"))
        deliver_all(world, "us", "eu")
    world.finish("eu", world.catch_up("eu", "us"))
    conflict = world.conflicts("eu")[ROLE]
    assert (conflict.lost.value, conflict.won.value) == (1, 2)


def exchange_marks(world: SyncWorld) -> None:
    """Until each region knows that the other one has heard it."""
    world.now_ms += 1000
    for _ in range(2):
        for name in world.names:
            world.finish(name, world.mark(name))
        for name, source in product(world.names, world.names):
            for index in world.regions[name].readers[source].waiting(len(world.topic[source])):
                world.finish(name, world.deliver(name, source, index))


def test_a_write_the_peer_knew_is_no_conflict(world: SyncWorld) -> None:
    write(world, "us", 1)
    world.finish("us", world.mark("us"))
    deliver_all(world, "eu", "us")
    deliver_all(world, "eu", "us")
    write(world, "eu", 2)
    world.finish("us", world.catch_up("us", "eu"))
    assert world.values("us")[ROLE] == 2
    assert world.conflicts("us") == {}


def test_a_write_the_peer_learned_of_after_its_own_is_a_conflict(world: SyncWorld) -> None:
    """As if both wrote while synchronization was off, and one's mark overtook its comparison."""
    write(world, "us", 1)
    write(world, "eu", 2)
    world.finish("eu", world.catch_up("eu", "us"))
    world.finish("us", world.mark("us"))
    for _ in range(2):
        deliver_all(world, "eu", "us")
    world.finish("us", world.catch_up("us", "eu"))
    conflict = world.conflicts("us")[ROLE]
    assert (conflict.lost.value, conflict.won.value) == (1, 2)


def test_a_conflict_names_who_asked_for_the_lost_write(world: SyncWorld) -> None:
    world.callers = {"us": "ann", "eu": "bob"}
    write(world, "us", 1)
    write(world, "eu", 2)
    world.finish("us", world.catch_up("us", "eu"))
    assert world.conflicts("us")[ROLE].caller == "ann"
    write(world, "us", None)
    write(world, "eu", 3)
    world.finish("eu", world.publish("eu"))
    deliver_all(world, "us", "eu")
    conflict = world.conflicts("us")[ROLE]
    assert (conflict.lost.is_deletion, conflict.won.value, conflict.caller) == (True, 3, "ann")


def test_a_write_of_another_region_names_nobody(world: SyncWorld) -> None:
    world.callers = {"us": "ann"}
    write(world, "us", 1)
    world.finish("us", world.publish("us"))
    deliver_all(world, "eu", "us")
    assert b"ann" in world.regions["us"].store.records[ROLE].value
    assert b"ann" not in world.regions["eu"].store.records[ROLE].value


def test_marks_received_after_a_write_do_not_make_it_a_conflict(world: SyncWorld) -> None:
    write(world, "us", 1)
    world.finish("us", world.mark("us"))
    for _ in range(2):
        deliver_all(world, "eu", "us")
    write(world, "eu", 2)
    for _ in range(100):
        world.now_ms += 5000
        world.finish("us", world.mark("us"))
        deliver_all(world, "eu", "us")
    world.finish("us", world.catch_up("us", "eu"))
    assert world.values("us")[ROLE] == 2
    assert world.conflicts("us") == {}


def pass_horizon(world: SyncWorld) -> None:
    """Give every region marks later than anything written."""
    world.now_ms += 1000
    for _ in range(2):
        for region in world.names:
            world.finish(region, world.mark(region))
        for region in world.names:
            for source in world.names:
                for _ in world.topic[source]:
                    deliver_all(world, region, source)
    for region in world.names:
        world.finish(region, world.regions[region].brokers[0].applier.forget())
        assert world.horizon(region) > (world.now_ms - 1000, 0)


def test_a_value_whose_event_was_lost_is_kept_and_sent_however_late(world: SyncWorld) -> None:
    write(world, "us", 1)
    world.finish("us", world.publish("us"))
    # dead-lettered, or acked by others
    world.regions["eu"].readers["us"].delivered.update(range(len(world.topic["us"])))
    pass_horizon(world)
    world.finish("us", world.catch_up("us", "eu"))
    assert world.values("us")[ROLE] == 1
    world.finish("eu", world.catch_up("eu", "us"))
    assert world.values("eu")[ROLE] == 1


def test_a_value_that_a_peer_is_only_slow_to_list_is_not_deleted(world: SyncWorld) -> None:
    """A broker lists what its watches have reported, which may be less than its store has."""
    before = world.finish("eu", known_in(world.regions["eu"].store))
    write(world, "eu", 1)

    def all_hear_all() -> None:
        for source in ("us", "eu") * 2:
            world.finish(source, world.mark(source))
            for region in ("us", "eu"):
                deliver_all(world, region, source)

    all_hear_all()
    copy = world.regions["us"].store.copy()
    world.now_ms += 60_000
    all_hear_all()
    world.finish("eu", world.regions["eu"].brokers[0].applier.forget())
    world.crash("us")
    world.regions["us"].store = copy  # it does not know deletions up to eu's horizon
    world.start("us")

    async def catch_up() -> int:
        peer = await PeerInMemory.of(world, "eu", "us")
        peer.known, peer.answer = before, replace(peer.answer, buckets=before.buckets(peer.answer.scopes))
        comparison = await compared(await known_in(copy), peer)
        assert comparison.here.keys() - comparison.there.keys() == {TENANT, ROLE}
        return await take(comparison, peer, world.regions["us"].brokers[0].applier, one_after_another, paths.SCOPES)

    assert world.finish("us", catch_up()) == 0
    assert world.values("us")[ROLE] == 1


def test_a_region_that_joins_late_keeps_and_shares_what_it_alone_has() -> None:
    world = SyncWorld(["us", "eu", "ap"])
    write(world, "ap", 1)
    world.names = ["us", "eu"]
    write(world, "us", 2, only_us := tenant_role("t", "only-us"))
    world.finish("us", world.publish("us"))
    pass_horizon(world)
    world.names = ["us", "eu", "ap"]
    world.finish("ap", world.catch_up("ap", "us"))
    world.finish("ap", world.catch_up("ap", "eu"))
    assert world.values("ap")[ROLE] == 1
    assert world.values("ap")[only_us] == 2
    pass_horizon(world)
    for region in ("us", "eu"):
        world.finish(region, world.catch_up(region, "ap"))
        assert world.values(region)[ROLE] == 1
    world.quiet()
    world.check_agreement()


@pytest.mark.parametrize(("side", "wanted"), [("us", 1), ("eu", 2)])
def test_differences_are_decided_for_the_named_side(world: SyncWorld, side: str, wanted: int) -> None:
    only_there = tenant_role("t", "there")
    write(world, "us", 1)
    write(world, "eu", 2)
    write(world, "eu", 3, only_there)

    async def decide() -> int:
        peer = await PeerInMemory.of(world, "eu", "us")
        comparison = await compared(await known_in(world.regions["us"].store), peer)
        assert comparison.differences(paths.SCOPES) == [ROLE]
        assert comparison.paths() == [ROLE, only_there]
        return await decide_for(comparison, peer, world.regions["us"].brokers[0].catalog, side, paths.SCOPES)

    assert world.finish("us", decide()) == 1
    world.quiet()
    world.check_agreement()
    assert world.values("eu")[ROLE] == wanted
    assert world.values("us")[only_there] == 3


def test_a_value_that_cannot_be_served_holds_back_no_other(world: SyncWorld) -> None:
    write(world, "eu", 2)
    store = world.regions["eu"].store
    bad = keys.tenant("u")
    store.records[bad] = Record(encode("no map", Stamp(5, 0, "eu")), 77)

    async def catch_up() -> None:
        peer = await PeerInMemory.of(world, "eu", "us")
        comparison = await compared(await known_in(world.regions["us"].store), peer)
        await take(comparison, peer, world.regions["us"].brokers[0].applier, one_after_another, paths.SCOPES)

    with pytest.raises(Invalid, match="1 values of eu cannot be served here"):
        world.finish("us", catch_up())
    assert world.values("us")[ROLE] == 2
    assert bad not in world.values("us")


def choice(**given: str) -> SyncChoice:
    topics = {EVENT_TOPIC: "", CONFIGURATION_EVENT_TOPIC: ""}
    usual = topics | {SCOPES: "tenants,namespaces", TOMBSTONE_RETENTION: "0", MAX_CLOCK_SKEW: "10"}
    return SyncChoice(usual | given)


def test_new_settings_apply_at_once_and_invalid_ones_change_nothing() -> None:
    chosen = choice(**{EVENT_TOPIC: "persistent://public/default/a"})
    assert chosen.is_synced(TENANT)
    chosen.follow({**chosen.values, SCOPES: "namespaces"})
    assert not chosen.is_synced(TENANT)
    with pytest.raises(Invalid):
        chosen.follow({**chosen.values, SCOPES: "ledgers"})
    assert chosen.scopes == {"namespaces"}
    chosen.follow({**chosen.values, EVENT_TOPIC: ""})
    assert chosen.topic == ""


@pytest.mark.parametrize(
    "given",
    [
        {EVENT_TOPIC: "non-persistent://public/default/a"},
        {EVENT_TOPIC: "persistent://public/default/a-partition-1"},
        {EVENT_TOPIC: "no topic/at all"},
        {EVENT_TOPIC: "a", CONFIGURATION_EVENT_TOPIC: "b"},
        {SCOPES: "ledgers"},
        {TOMBSTONE_RETENTION: "3599"},
    ],
)
def test_invalid_settings_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        choice(**given)


@pytest.mark.parametrize(
    ("offsets_ms", "refuses"), [((11_000,), False), ((11_000, 12_000), True), ((11_000, 0), False), ((), False)]
)
def test_only_the_region_whose_clock_differs_from_most_refuses(offsets_ms: tuple[int, ...], refuses: bool) -> None:
    peers = [PeerState(compared_ms=1, clock_offset_ms=offset) for offset in offsets_ms]
    assert (off_clock("us", peers, 10_000) is not None) == refuses
    assert off_clock("us", peers, 12_000) is None


def test_how_far_ahead_a_stamp_may_be_can_be_set_at_run_time(world: SyncWorld) -> None:
    chosen = choice(**{MAX_CLOCK_SKEW: "1"})
    store, clock = world.regions["us"].store, world.regions["us"].brokers[0].clock
    everyone, waiting = (lambda: frozenset(("us", "eu"))), WaitingInMemory(store)
    now_ms = lambda: world.now_ms  # noqa: E731
    applier = Applier(store, clock, now_ms, is_synced, everyone, waiting, max_ahead_ms=lambda: chosen.max_ahead_ms)
    event = Event(TENANT, Stamped(Stamp(world.now_ms + 5000, 0, "eu"), canonical({})))
    world.finish("us", applier.apply(Changes("eu", (event,))))
    world.finish("us", applier.release())
    assert TENANT not in world.values("us")
    chosen.follow({**chosen.values, MAX_CLOCK_SKEW: "5"})
    world.finish("us", applier.release())
    assert world.values("us")[TENANT] == {}


def test_a_name_belongs_to_the_first_store_until_it_is_reassigned(world: SyncWorld) -> None:
    store = world.regions["us"].store
    standing = Standing(store, choice(), "us", lambda: 0, numbered())

    def belongs(identity: str) -> bool:
        found: bool = world.finish("us", standing.belongs_to("eu", identity))
        return found

    assert world.finish("us", standing.identity()) == world.finish("us", standing.identity()) == "1"
    assert [belongs("a"), belongs("b"), belongs("a")] == [True, False, True]
    world.finish("us", standing.give("eu", "b"))
    assert [belongs("a"), belongs("b")] == [False, True]


@pytest.mark.parametrize(
    ("taken", "accepted", "refuses"),
    [("eu", "", True), ("eu", "ap", False), ("eu ap", "", True), ("eu ap", "af", True), ("eu", "ap af", False)],
)
def test_a_region_alone_does_not_keep_another_one_from_writing(taken: str, accepted: str, refuses: bool) -> None:
    """Unless it is the only one that has answered."""
    chosen = choice()
    standing = Standing(StoreInMemory("us"), chosen, "us", lambda: 0, numbered())
    peers = {region: PeerState() for region in taken.split()}
    peers |= {region: PeerState(compared_ms=1) for region in accepted.split()} | {"away": PeerState()}
    for region in taken.split():
        standing.name_taken(NameTaken(f"{region} knows another store"), region)
    standing.judge(peers)
    assert (chosen.refusal is not None) == refuses
    for region in taken.split():
        standing.name_taken(None, region)
    standing.judge(peers)
    assert chosen.refusal is None


def numbered() -> Callable[[], str]:
    numbers = iter("123")
    return lambda: next(numbers)


def test_identities_survive_their_process(world: SyncWorld) -> None:
    store: StoreInMemory = world.regions["us"].store
    first, second = (Standing(store, choice(), "us", lambda: 0, draw) for draw in (lambda: "x", lambda: "y"))
    assert world.finish("us", first.identity()) == world.finish("us", second.identity()) == "x"
    assert paths.scope_of(paths.IDENTITY) is None
