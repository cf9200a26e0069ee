# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin`` in stories (R26): lines about it, seeds with it, and what must hold.

scope us t sub origin|local       set it in us; it propagates to the other regions
takeover us t sub ORIGIN REGION   tell us that from now on the region dispatches the origin's messages
witness us t sub REGION|none      the region also votes, although the topic is not there
expect voters t sub               the voters, as each region knows them
expect streams t sub              which regions would dispatch each origin's messages at this moment

At each delivery every other broker is asked whether it would also deliver the same message: none may. When all is
quiet, consumers that read everything are in all regions at once: each unacked message comes to exactly one of them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import ZERO
from meridian_broker.positions.position import Origin
from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.journal.subscription_record import LOCAL, ORIGIN
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation.agreement import Agreement
from simulation.consumers import SimConsumer
from simulation.origin_streams import holders
from simulation.teller import Teller

if TYPE_CHECKING:
    from simulation.broker import SimBroker
    from simulation.world import World

EVERY: Final = 8
"""One seed in this many has scopes."""
SETTLED_MS: Final = 15_000
"""After this time leases of six seconds have expired, and each stream is with its preferred holder."""


class ScopeSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_scope(self, region: str, topic: str, name: str, scope: str) -> None:
        subscription = self._subscription(region, topic, name)
        if subscription is None:
            return
        refusal = _refusal(self._broker(region), subscription)
        if scope == ORIGIN and refusal:
            self.say(f"refused: {refusal}")
            return
        subscription.registry.set_scope(subscription, scope, subscription.record.preferred)

    def do_takeover(self, region: str, topic: str, name: str, origin: str, holder: str) -> None:
        subscription = self._subscription(region, topic, name)
        if subscription is not None and subscription.record.scope == ORIGIN:
            preferred = {**subscription.record.preferred, origin: holder}
            self.world.model.commands_us[topic, name] = self.world.loop.now_us
            subscription.registry.set_scope(subscription, ORIGIN, preferred)

    def do_witness(self, region: str, topic: str, name: str, witness: str) -> None:
        subscription = self._subscription(region, topic, name)
        if subscription is not None and subscription.record.scope == ORIGIN:
            preferred, named = subscription.record.preferred, "" if witness == "none" else witness
            subscription.registry.set_scope(subscription, ORIGIN, preferred, witness=named)

    def expect_voters(self, topic: str, name: str) -> None:
        for region in sorted(self.world.homes_of(topic)):
            subscription = _find(self.world, region, topic, name)
            if subscription is not None:
                known = subscription.record.voter_sets
                lists = " and ".join(" ".join(voters) for _, voters in known.lists)
                self.say(f"{region}: {lists or 'nobody'}{'' if known.is_committed else ', to be agreed'}")

    def expect_streams(self, topic: str, name: str) -> None:
        for origin in self.world.names:
            who = [broker.region for broker, _ in holders(self.world, topic, name, origin)]
            self.say(f"{origin}: {' '.join(who) or 'nobody'}")


def _refusal(broker: SimBroker | None, subscription: Subscription) -> str:
    """Like ``admin/meridian/scoping.py``."""
    if not subscription.replicated:
        return "it is not replicated"
    assert broker is not None
    assert broker.exchange.core.leases is not None
    return broker.exchange.core.leases.objection(subscription.topic.regions(), sure=True)


def probe_streams(world: World, topic: str, name: str) -> None:
    """Consumers in all regions at once, each of which reads everything it gets; then everything is local again."""
    homes = world.homes_of(topic)
    subscriptions = [subscription for region in homes if (subscription := _find(world, region, topic, name))]
    if not any(subscription.streams is not None for subscription in subscriptions):
        return
    while world.network.is_silent:  # commands and votes travel on links that nothing but keep-alive can end
        world.run(1000)
    probes = {}
    for region in homes:
        probe = probes[region] = SimConsumer(world, f"probe of {name} in {region}", region, topic, name, EXCLUSIVE)
        probe.probe = {}
        probe.connect()
    world.run(SETTLED_MS)
    for _ in range(200):
        got = [len(probe.probe or ()) for probe in probes.values()]
        world.run(300)
        if got == [len(probe.probe or ()) for probe in probes.values()]:
            break
    came: dict[Origin, int] = {}
    for region, probe in probes.items():
        places = {position: origin for position, origin, _ in world.model.logs.of(homes[region], topic)}
        for position, bits in (probe.probe or {}).items():
            if (origin := places.get(position)) is not None:
                came[origin] = came.get(origin, 0) | bits
    waiting = _held_up(world, topic, name)
    for probe in probes.values():
        probe.close(lambda: None)
    world.run(1000)
    everywhere = set.intersection(
        *({origin for _, origin, _ in world.model.logs.of(home, topic)} for home in homes.values())
    )
    for region, home in homes.items():
        subscription = _find(world, region, topic, name)
        if subscription is not None and not world.model.violations and not _waits_for_the_dead(world, subscription):
            log = world.model.logs.of(home, topic)
            dropped = {
                origin: whole
                for _, origin, messages in log
                if (whole := (1 << messages) - 1)
                # The stream's holder may lack the entry: dropped, or trimmed before a rewind needed it.
                and (origin not in everywhere or world.model.judging.is_dropped_somewhere(topic, subscription, origin))
            }
            got_here = {
                position: (1 << messages) - 1 if origin in waiting else came.get(origin, 0) | dropped.get(origin, 0)
                for position, origin, messages in log
            }
            world.model.judging.check_delivered(home, topic, subscription, got_here)
    subscription = _find(world, next(iter(homes)), topic, name)
    if subscription is not None:
        subscription.registry.set_scope(subscription, LOCAL, {})
    world.run(5000)


def _held_up(world: World, topic: str, name: str) -> set[Origin]:
    """What the dispatching region lacks, because a gap waits for an operator: status shows that (R4)."""
    logs = {
        region: {origin for _, origin, _ in world.model.logs.of(home, topic)} for region, home in world.regions.items()
    }
    everything = set().union(*logs.values())
    return {
        one
        for origin in world.names
        for broker, _ in holders(world, topic, name, origin)
        if broker.region != origin and Agreement(world).hold(origin, broker.region, topic) in ("GAP", "ROLLED_BACK")
        for one in everything - logs[broker.region]
        if one.region == origin
    }


def _waits_for_the_dead(world: World, subscription: Subscription) -> bool:
    """Whether a first list of voters can never count: that needs all of them, and one is gone for good."""
    known = subscription.record.voter_sets
    return known.committed == ZERO and not world.gone.isdisjoint(known.voters)


def _find(world: World, region: str, topic: str, name: str) -> Subscription | None:
    broker = world.regions[region].broker_of(topic)
    opened = None if broker is None else broker.topic(topic)
    return None if opened is None else opened.subscriptions.get(name)


def with_scopes(seed: int, lines: list[str]) -> list[str]:
    """Every eighth seed's subscriptions have dispatch scope origin for a while; the others stay as they are."""
    if seed % EVERY != 5:
        return lines
    random = Random(f"scopes {seed}")
    begin = next(at for at, line in enumerate(lines) if line.startswith("regions"))
    regions = lines[begin].split()[1:]
    words = [line.split() for line in lines]
    subscriptions = sorted({(line[3], line[4]) for line in words if line[0] == "consumer"}) or [("t", "sub")]
    opening: list[str] = []
    consumers: list[str] = []
    for number, (topic, name) in enumerate(subscriptions):
        opening += [
            f"produce {random.choice(regions)} {topic} x3",
            f"subscribe {regions[0]} {topic} {name}",
            "tick 1000",
        ]
        kind = random.choice(("shared", "shared", "key_shared", "exclusive", "failover"))
        for region in regions:
            if random.random() < 0.8:
                auto = " auto" * (random.random() < 0.6)
                consumers.append(f"s{number}{region}")
                opening.append(f"consumer {consumers[-1]} {region} {topic} {name} {kind}{auto}")
        opening += [f"scope {random.choice(regions)} {topic} {name} origin", f"tick {random.choice((10, 1000, 4000))}"]
    rest: list[str] = []
    for line in lines[begin + 1 :]:
        chance = random.random()
        topic, name = random.choice(subscriptions)
        if chance < 0.04:
            one, two = random.choice(regions), random.choice(regions)
            rest.append(f"takeover {random.choice(regions)} {topic} {name} {one} {two}")
        elif chance < 0.06:
            rest.append(f"scope {random.choice(regions)} {topic} {name} {random.choice(('origin', 'local'))}")
        elif chance < 0.14:
            rest += [f"tick {random.choice((1000, 6500, 9000))}", f"produce {random.choice(regions)} {topic} x3"]
        elif chance < 0.3 and consumers:
            rest.append(f"{random.choice(('ack', 'cumulative'))} {random.choice(consumers)} x{random.randint(1, 5)}")
        rest.append(line)
    return [*lines[: begin + 1], *opening, *rest]
