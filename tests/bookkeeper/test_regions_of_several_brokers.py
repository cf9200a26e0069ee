# SPDX-License-Identifier: Apache-2.0
"""Two regions of two brokers each on real bookies: messages and acknowledgements find the owners of their topics, and
follow them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from meridian_verifier.align.verdicts import State
from meridian_verifier.source.client import RegionClient
from meridian_verifier.source.regions import Region as VerifiedRegion
from support.brokers.bookies import Bookies
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.free_ports import free_port
from support.brokers.region_clients import EARLIEST, PATIENCE_MS, SHARED, connected
from support.protocol.admin_paths import subscription_path
from support.verifier.verifier_live import live_verdict

LEASE_SECONDS = 10.0
"""The default."""

_worlds = itertools.count(1)
NAMESPACE = "/admin/v2/namespaces/public/default"


class Region:
    """A region of several brokers, or of one."""

    def __init__(self, name: str, ids: str) -> None:
        self.name = name
        self.ports = {broker: (free_port(), free_port()) for broker in ids or "-"}
        self.brokers: dict[str, BrokerProcess] = {}

    @property
    def url(self) -> str:
        """The addresses of all its brokers."""
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port, _ in self.ports.values())

    @property
    def admin_url(self) -> str:
        return "http://" + ",".join(f"127.0.0.1:{port}" for _, port in self.ports.values())

    def is_balanced(self) -> bool:
        """Whether each of two brokers owns two of the four bundles of public/default, as their logs say."""
        logs = [broker.log() for broker in self.brokers.values()]
        return len(logs) == 1 or all(
            log.count(": owns public/default/") - log.count(": gave up public/default/") == 2 for log in logs
        )

    def asked(self) -> BrokerProcess:
        """One of its brokers."""
        return next(iter(self.brokers.values()))

    def owner(self, topic: str) -> BrokerProcess | None:
        """The broker that serves a topic."""
        for asked in self.brokers.values():
            with contextlib.suppress(OSError):
                answer = asked.http("GET", f"/lookup/v2/topic/persistent/public/default/{topic}")
                if answer.status == 200:
                    port = int(answer.json["brokerUrl"].rpartition(":")[2])
                    return next(one for one in self.brokers.values() if one.port == port)
        return None

    def other(self, broker: BrokerProcess) -> BrokerProcess:
        return next(one for one in self.brokers.values() if one is not broker)

    def transfer(self, topic: str) -> None:
        """Hand the topic's bundle to the other broker."""
        owner = self.owner(topic)
        assert owner is not None
        other = self.other(owner)
        bundle = owner.http("GET", f"/lookup/v2/topic/persistent/public/default/{topic}/bundle").text
        to = f"{NAMESPACE}/{bundle}/unload?destinationBroker=127.0.0.1:{other.http_port}"
        assert owner.http("PUT", to).status == 204


class World:
    """Regions that replicate to each other."""

    def __init__(self, bookies: Bookies, directory: Path, *brokers: str, **settings: str) -> None:
        """:param brokers: for each region, the ids of its brokers; empty: one broker, on its own volume."""
        number = next(_worlds)
        self.regions = [Region(f"{name}-{number}", ids) for name, ids in zip(("us", "eu"), brokers, strict=True)]
        self._regions_file = directory / "regions.json"
        self._token_file = directory / "peer.token"
        listed = [{"name": one.name, "service_url": one.url, "admin_url": one.admin_url} for one in self.regions]
        self._regions_file.write_text(json.dumps({"regions": listed}))
        self._token_file.write_text("a secret that only these tests know\n")
        for region in self.regions:
            for broker, (port, http_port) in region.ports.items():
                several = {"brokerId": broker, "managedLedgerStorage": "bookkeeper"} if broker != "-" else {}
                several |= {"metadataStoreSessionTimeoutMillis": "2000"} if several and settings else {}
                region.brokers[broker] = BrokerProcess(
                    region.name,
                    directory / f"{region.name}-{broker}",
                    settings=several | settings,
                    port=port,
                    http_port=http_port,
                    regions_file=self._regions_file,
                    peer_token_file=self._token_file,
                    metadata_url=f"etcd:{bookies.url}" if broker != "-" else None,
                )

    def start(self) -> None:
        for region in self.regions:
            for broker in region.brokers.values():
                broker.start()
        names = [region.name for region in self.regions]
        for region in self.regions:
            assert region.asked().http("POST", f"{NAMESPACE}/replication", names).status == 204
        wait_until(lambda: all(region.is_balanced() for region in self.regions), "brokers to own equally many bundles")
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until every running broker has caught up with the other regions, and its copies are complete."""
        missing: list[object] = []

        def ready() -> bool:
            missing[:] = filter(None, map(_not_ready, self._every()))
            return not missing

        try:
            wait_until(ready, "all regions to have caught up with each other", 120.0)
        except AssertionError:
            raise AssertionError(f"not ready: {missing}") from None

    def _every(self) -> list[BrokerProcess]:
        return [broker for region in self.regions for broker in region.brokers.values() if broker.is_running()]

    def close(self) -> None:
        for region in self.regions:
            for broker in region.brokers.values():
                broker.kill()


def _not_ready(broker: BrokerProcess) -> object:
    """What a broker still waits for; false: nothing."""
    try:
        said = broker.http("GET", "/meridian/v1/regions").json["regions"]
    except OSError as error:
        return error
    own = next(one for one in said if one["local"])
    apart = {one["name"]: one["progress"] for one in said if not one["local"]}
    found = {name: one for name, one in apart.items() if one["apart"] or not one["connected"]}
    return found or own["not_ready"] or own["not_open"]["first"]


@pytest.fixture
def world(bookies: Bookies, tmp_path: Path) -> Iterator[World]:
    made = World(bookies, tmp_path, "ab", "cd")
    try:
        made.start()
        yield made
    finally:
        made.close()


def publish(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    """Publish ``count`` messages, each of which is its number, and wait for their receipts."""
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(first, first + count):
        producer.send(b"%d" % number)
    producer.close()


def numbers(consumer: pulsar.Consumer, count: int) -> list[int]:
    """Receive and acknowledge the next messages."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found


def dispatchers(region: Region, topic: str) -> dict[str, str]:
    """Origin -> the region that dispatches its messages, as the topic's owner in this region knows."""
    if (owner := region.owner(topic)) is None:
        return {}
    with contextlib.suppress(OSError):
        answer = owner.http("GET", f"{subscription_path(f'persistent://public/default/{topic}')}/scope")
        if answer.status == 200:
            return {one["origin"]: one["dispatched_by"] for one in answer.json.get("shares", ())}
    return {}


def heard(consumer: pulsar.Consumer, wanted: range) -> list[int]:
    """Receive and acknowledge messages until the wanted ones came, and then until none comes for a while."""
    found: list[int] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(1500 if set(wanted) <= set(found) else PATIENCE_MS)
            consumer.acknowledge(message)
            found.append(int(message.data()))
    return found


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(topic, "s", SHARED, initial_position=EARLIEST, replicate_subscription_state_enabled=True)


def test_topics_find_their_owners_in_the_other_region(world: World) -> None:
    us, eu = world.regions
    topics = [f"orders-{number}" for number in range(8)]
    with connected(us.url) as here, connected(eu.url) as there:
        for topic in topics:
            subscribe(here, topic).close()
            publish(here, topic, 0, 20)
        assert {us.owner(topic) for topic in topics} == set(us.brokers.values())
        assert {eu.owner(topic) for topic in topics} == set(eu.brokers.values())
        eu.transfer(topics[0])
        for topic in topics:
            consumer = subscribe(there, topic)
            assert numbers(consumer, 10) == list(range(10))
            consumer.close()
        for topic in topics:
            consumer = subscribe(here, topic)
            assert numbers(consumer, 5) == list(range(10, 15))
            consumer.close()
        for topic in topics:
            publish(there, topic, 20, 1)
            consumer = subscribe(there, topic)
            assert numbers(consumer, 6) == list(range(15, 21))
            consumer.close()
    world.until_ready()
    names = [f"persistent://public/default/{topic}" for topic in topics]
    for number in range(2):  # whichever broker of each region is asked
        asked = {region.name: list(region.brokers.values())[number].admin_url for region in world.regions}
        for name in names:
            verdict = live_verdict(asked, name)
            assert verdict.findings == ()
            assert verdict.state is State.ALIGNED
        for region in asked:
            client = RegionClient(VerifiedRegion(region, asked[region]))
            taken = client.take("persistent://public/default/orders-*")
            rows = [
                name
                for partition in range(taken.partitions["topics"])
                for batch in client.rows(taken.snapshot, "topics", partition)
                for name in batch["topic"].to_pylist()
            ]
            assert sorted(rows) == names


class Load:
    """A producer in one region and a consumer in another, which both carry on whatever happens to brokers."""

    def __init__(self, publish_at: str, consume_at: str, topic: str) -> None:
        self._topic = topic
        self._urls = publish_at, consume_at
        self.sent: list[int] = []
        """The numbers of messages with receipts."""
        self.got: list[tuple[int, float]] = []
        """The number of each message received, with the time at which its acknowledgement was sent."""
        self.ids: list[str] = []
        """Their ids and redelivery counts."""
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]
        self._problems: list[BaseException] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.got and self.got[-1][1] - self.got[0][1] > 3.0, "messages to arrive for three seconds")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert not self._problems

    def _publish(self) -> None:
        with connected(self._urls[0]) as client:
            producer = client.create_producer(self._topic, batching_enabled=False, send_timeout_millis=120_000)
            while not self._is_over.is_set():
                producer.send(b"%d" % len(self.sent))
                self.sent.append(len(self.sent))
                time.sleep(0.005)

    def _consume(self) -> None:
        with connected(self._urls[1]) as client:
            consumer = subscribe(client, self._topic)
            quiet_since = time.monotonic()
            while not self._is_over.is_set() or time.monotonic() < quiet_since + 30.0:
                try:
                    message = consumer.receive(500)
                except pulsar.Timeout:
                    if self._is_over.is_set() and {number for number, _ in self.got} >= set(self.sent):
                        return
                    continue
                consumer.acknowledge(message)
                self.got.append((int(message.data()), time.monotonic()))
                self.ids.append(f"{message.message_id()} {message.redelivery_count()}")
                quiet_since = time.monotonic()

    def wait_for_more(self) -> None:
        """Wait until messages published from now on arrive."""
        number = len(self.sent) + 20
        wait_until(lambda: any(one >= number for one, _ in self.got), "messages to go on arriving", 120.0)

    def lost(self) -> set[int]:
        return set(self.sent) - {number for number, _ in self.got}

    def again(self, moment: float) -> list[str]:
        """Messages that came again after ``moment`` although they were acknowledged a second or more before it: clients
        hold acknowledgements back for a tenth of a second."""
        first: dict[int, tuple[float, str]] = {}
        found = []
        for (number, at), message in zip(self.got, self.ids, strict=True):
            before, earlier = first.setdefault(number, (at, message))
            if at > moment and before < moment - 1.0:
                found.append(f"{number}: {earlier} at {before - moment:.3f}, {message} at {at - moment:.3f}")
        return found


def suspended(broker: BrokerProcess) -> None:
    """Suspend a broker for longer than its lease, then resume it."""
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(LEASE_SECONDS + 3.0)
    os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("where", [0, 1], ids=["publishing", "consuming"])
@pytest.mark.parametrize("what", ["transferred", "stopped", "killed", "suspended"])
def test_under_load_an_owner_is(world: World, what: str, where: int) -> None:
    us, eu = world.regions
    region = world.regions[where]
    with connected(eu.url) as there:
        subscribe(there, "orders").close()
    with Load(us.url, eu.url, "orders") as load:
        owner, moment = region.owner("orders"), time.monotonic()
        assert owner is not None
        if what == "transferred":
            region.transfer("orders")
        elif what == "stopped":
            assert owner.stop() == 0
        elif what == "killed":
            owner.kill()
        else:
            suspended(owner)
        load.wait_for_more()
    assert not load.lost()
    assert what in ("killed", "suspended") or load.again(moment) == []
    with connected(us.url) as here:
        consumer = subscribe(here, "orders")
        publish(here, "orders", len(load.sent), 1)
        assert numbers(consumer, 1) == [len(load.sent)], "what eu acknowledged counts in us"


@pytest.mark.parametrize(("us", "eu"), [("-", "cd"), ("ab", "-")])
def test_a_region_of_one_broker_on_its_own_volume_beside_one_of_two(
    bookies: Bookies, tmp_path: Path, us: str, eu: str
) -> None:
    world = World(bookies, tmp_path, us, eu)
    try:
        world.start()
        here, there = world.regions
        topics = [f"orders-{number}" for number in range(4)]
        with connected(here.url) as near, connected(there.url) as far:
            for topic in topics:
                subscribe(near, topic).close()
                publish(near, topic, 0, 20)
                consumer = subscribe(far, topic)
                assert numbers(consumer, 10) == list(range(10))
                consumer.close()
            divided = here if us != "-" else there
            divided.transfer(topics[0])
            for topic in topics:
                consumer = subscribe(near, topic)
                assert numbers(consumer, 10) == list(range(10, 20))
                consumer.close()
        world.until_ready()
    finally:
        world.close()


def test_scope_origin_follows_the_owners_of_a_topic(world: World) -> None:
    us, eu = world.regions
    own = {region.name: region.name for region in world.regions}
    with connected(us.url) as here, connected(eu.url) as there:
        near, far = subscribe(here, "orders"), subscribe(there, "orders")
        owner = us.owner("orders")
        assert owner is not None
        path = f"{subscription_path('persistent://public/default/orders')}/scope"
        assert owner.http("POST", path, {"dispatchScope": "origin"}).status == 204

        def each_its_own(first: int) -> None:
            wait_until(
                lambda: all(dispatchers(region, "orders") == own for region in world.regions),
                "each region to dispatch what was published there",
                60.0,
            )
            publish(here, "orders", first, 20)
            publish(there, "orders", first + 50, 20)
            for consumer, wanted in ((near, range(first, first + 20)), (far, range(first + 50, first + 70))):
                assert heard(consumer, wanted) == list(wanted)

        each_its_own(0)
        us.transfer("orders")
        each_its_own(100)
        eu.transfer("orders")
        each_its_own(200)
        owner = us.owner("orders")
        assert owner is not None
        suspended(owner)
        each_its_own(300)
        owner = eu.owner("orders")
        assert owner is not None
        owner.kill()
        each_its_own(400)
    world.until_ready()


def test_calls_between_regions_reach_the_owners_of_partitions(world: World) -> None:
    us, eu = world.regions
    path = "/admin/v2/persistent/public/default/many"
    assert us.asked().http("PUT", f"{path}/partitions", 8).status == 204
    assert eu.asked().http("GET", f"{path}/partitions").json["partitions"] == 8
    assert {eu.owner(f"many-partition-{number}") for number in range(8)} == set(eu.brokers.values())
    with connected(us.url) as here, connected(eu.url) as there:
        consumer = subscribe(there, "many")
        producer = here.create_producer(
            "many", batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for number in range(24):
            producer.send(b"%d" % number)
        assert sorted(numbers(consumer, 24)) == list(range(24))
        producer.close()
        asked = us.owner("many")
        assert asked is not None
        assert asked.http("POST", f"{path}/partitions", 10).status == 204
        wait_until(
            lambda: all(one.http("GET", f"{path}/partitions").json["partitions"] == 10 for one in eu.brokers.values()),
            "eu to have the new partitions",
        )
        for number in (8, 9):
            listed = f"{path}-partition-{number}/subscriptions"
            assert all(one.http("GET", listed).json == ["s"] for one in (us.asked(), *eu.brokers.values()))
        consumer.close()
        consumer = subscribe(there, "many")
        refused = us.asked().http("DELETE", f"{path}/partitions")
        assert refused.status == 412
        wait_until(
            lambda: f"{eu.name} has 10 clients" in us.asked().http("DELETE", f"{path}/partitions").reason,
            "the consumer to be connected to all ten partitions in eu",
        )
    wait_until(lambda: us.asked().http("DELETE", f"{path}/partitions").status == 204, "the topic to have no clients")
    for region in world.regions:
        for broker in region.brokers.values():
            assert broker.http("GET", f"{path}/partitions").status == 404
            assert broker.http("GET", "/admin/v2/persistent/public/default").json == []
            assert broker.http("GET", "/meridian/v1/health").json["healthy"]


def test_a_subscription_of_a_partitioned_topic_is_changed_at_all_owners(world: World) -> None:
    us, eu = world.regions
    path = "/admin/v2/persistent/public/default/several"
    topic = "persistent://public/default/several"
    subscription = subscription_path(topic)
    assert us.asked().http("PUT", f"{path}/partitions", 6).status == 204
    parts = {f"{topic}-partition-{number}" for number in range(6)}
    assert {us.owner(f"several-partition-{number}") for number in range(6)} == set(us.brokers.values())
    assert us.asked().http("PUT", f"{path}/subscription/s", "earliest").status == 204
    assert eu.asked().http("PUT", f"{path}/subscription/s", "earliest").status == 204
    with connected(us.url) as client:
        consumer = client.subscribe("several", "s", SHARED, initial_position=EARLIEST)
        producer = client.create_producer(
            "several", batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for number in range(12):
            producer.send(b"%d" % number)
        assert sorted(numbers(consumer, 12)) == list(range(12))
        consumer.close()

    def backlog() -> int:
        return sum(
            one["backlog"] for one in eu.asked().http("GET", f"{subscription}/status").json["partitions"].values()
        )

    wait_until(lambda: backlog() == 12, "eu to have the messages")
    for broker in (*us.brokers.values(), *eu.brokers.values()):
        told = broker.http("POST", f"{subscription}/mode", {"replicated": True, "dryRun": True}).json
        assert told["regions"] == {us.name: {"skips": 0, "again": 0}, eu.name: {"skips": 12, "again": 0}}, told
        assert not told["done"]
        assert broker.http("POST", f"{subscription}/mode", {"replicated": 1}).status == 412
    assert us.asked().http("POST", f"{subscription}/mode", {"replicated": True}).json["done"]
    wait_until(lambda: backlog() == 0, "eu to have the acknowledgements")
    for broker in (*us.brokers.values(), *eu.brokers.values()):
        status = broker.http("GET", f"{subscription}/status").json
        assert set(status["partitions"]) == parts
        assert all(one["replicated"] for one in status["partitions"].values())
        assert status["backlog"] == 0
        assert broker.http("GET", f"{subscription_path(topic, 'nobody')}/status").status == 404
        everywhere = broker.http("GET", f"{subscription}/status?allRegions=true").json["regions"]
        assert {region: set(one["partitions"]) for region, one in everywhere.items()} == {
            us.name: parts,
            eu.name: parts,
        }
    assert eu.asked().http("POST", f"{subscription}/scope", {"dispatchScope": "origin"}).status == 204

    def scopes(broker: BrokerProcess) -> set[str]:
        shown = broker.http("GET", f"{subscription}/scope").json["partitions"]
        assert set(shown) == parts
        return {one["dispatch_scope"] for one in shown.values()}

    for broker in (*us.brokers.values(), *eu.brokers.values()):
        wait_until(lambda broker=broker: scopes(broker) == {"origin"}, "the scope to be in force")


SHARED_METADATA = "/meridian/v1/metadata/status"
TENANTS = "/admin/v2/tenants"


def has(broker: BrokerProcess, tenant: str) -> bool:
    return broker.http("GET", f"{TENANTS}/{tenant}").status == 200


def make(broker: BrokerProcess, tenant: str) -> None:
    made = broker.http("PUT", f"{TENANTS}/{tenant}", {"adminRoles": [], "allowedClusters": [broker.region]})
    assert made.status == 204, made.text


def test_another_broker_goes_on_with_shared_metadata(bookies: Bookies, tmp_path: Path) -> None:
    """One broker of a region applies what other regions wrote, and publishes what its own region wrote. When it is
    suspended or killed, the other one stands in for it long before it owns the topic, and then does both, also for
    what was written or arrived in between."""
    events = "persistent://public/default/metadata-events"
    settings = {"metadataSyncEventTopic": events, "metadataStoreSessionTimeoutMillis": "30000"}
    world = World(bookies, tmp_path, "ab", "-", **settings)
    try:
        world.start()
        us, eu = world.regions
        far = eu.asked()

        def active() -> list[BrokerProcess]:
            running = [one for one in us.brokers.values() if one.is_running()]
            return [one for one in running if one.http("GET", SHARED_METADATA).json.get("active")]

        for broker in (*us.brokers.values(), far):
            wait_until(
                lambda broker=broker: broker.http("GET", SHARED_METADATA).json.get("synced"),
                "the regions to be in step",
                120.0,
            )
        make(us.asked(), "before")
        wait_until(lambda: has(far, "before"), "eu to have the tenant")
        (owner,) = active()
        other = us.other(owner)
        applied = [one.http("GET", SHARED_METADATA).json["applied"] for one in (owner, other)]
        make(far, "once")
        wait_until(lambda: has(owner, "once") and has(other, "once"), "both brokers of us to have the tenant")
        wait_until(
            lambda: owner.http("GET", SHARED_METADATA).json["applied"] > applied[0],
            "the owner to count what it applied",
        )
        assert other.http("GET", SHARED_METADATA).json["applied"] == applied[1], "one broker applies for both"

        def seen(there: BrokerProcess, maker: BrokerProcess, what: str) -> None:
            begun = time.monotonic()
            make(maker, what)
            wait_until(lambda: has(there, what), f"the tenant {what} to arrive")
            print(f"{what}: seen after {time.monotonic() - begun:.2f} s")

        os.kill(owner.pid, signal.SIGSTOP)  # it owns the topic, but no longer applies changes
        seen(other, far, "while-suspended")
        os.kill(owner.pid, signal.SIGCONT)
        wait_until(lambda: active() == [owner], "the owner to apply changes again")
        owner.kill()
        seen(other, far, "once-killed")
        seen(far, other, "owed")
        assert other.http("GET", SHARED_METADATA).json["outbox"], "the topic had no other owner yet"
        wait_until(lambda: active() == [other], "the other broker to apply changes", 120.0)
        wait_until(lambda: other.http("GET", SHARED_METADATA).json["outbox"] == 0, "the outbox to be sent")
        assert other.http("GET", SHARED_METADATA).json["published"] >= 1
        assert other.http("GET", SHARED_METADATA).json["conflicts"] == 0
        other.kill()
        owner.start()
        make(owner, "after")
        wait_until(lambda: has(far, "after"), "eu to have the tenant", 120.0)
        wait_until(lambda: active() == [owner], "the first broker to apply changes again", 120.0)
    finally:
        world.close()
