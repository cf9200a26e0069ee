# SPDX-License-Identifier: Apache-2.0
"""Two real regions that require permissions: what roles may do, what they are told, what works as before."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import HttpAnswer, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.guarded_regions import Guarded, guarded_regions, shown_by
from support.brokers.region_clients import PATIENCE_MS
from support.protocol.raw_connection import RawConnection, T

SHARED: Final = {
    "authorizationEnabled": "true",
    "metadataSyncEventTopic": "persistent://public/default/metadata-events",
    "metadataSyncScopes": "tenants,namespaces,permissions",
}
NS, TENANTS = "/admin/v2/namespaces", "/admin/v2/tenants"
BOTH: Final = {"replication_clusters": ["east", "west"]}
STRING: Final = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Both regions have tenant ``shop``, with admin role ``boss``, and its namespace ``shop/n``."""
    for regions in guarded_regions(tmp_path_factory.mktemp("guarded"), SHARED):
        wait_until(
            lambda: all(is_synced(regions, region) for region in regions.brokers),  # noqa: B023
            "the regions to be in step",
        )
        write(regions, "PUT", f"{TENANTS}/shop", {"adminRoles": ["boss"], "allowedClusters": ["east", "west"]})
        write(regions, "PUT", f"{NS}/shop/n", BOTH)
        wait_until(
            lambda: regions.ask(f"{NS}/shop/n", regions.admin, of="west") == 200,  # noqa: B023
            "west to have the namespace",
        )
        yield regions


def is_synced(regions: Guarded, region: str) -> bool:
    return bool(regions.answer("/meridian/v1/metadata/status", regions.admin, of=region).json["synced"])


def write(regions: Guarded, method: str, path: str, body: Any = ..., *, of: str = "east") -> None:
    answer = regions.answer(path, regions.admin, method, body, of=of)
    assert answer.status < 300, answer.text


def permissions(regions: Guarded, what: str, *, of: str = "east") -> Any:
    return regions.answer(f"/admin/v2/{what}/permissions", regions.admin, of=of).json


def grant(regions: Guarded, what: str, role: str, *actions: str, of: str = "east") -> None:
    """:param what: ``namespaces/t/n`` or ``persistent/t/n/topic``."""
    write(regions, "POST", f"/admin/v2/{what}/permissions/{quote(role, safe='')}", list(actions), of=of)


def revoke(regions: Guarded, what: str, role: str, *, of: str = "east") -> None:
    write(regions, "DELETE", f"/admin/v2/{what}/permissions/{quote(role, safe='')}", of=of)


@contextlib.asynccontextmanager
async def connected(regions: Guarded, role: str, *, to: str = "east") -> AsyncIterator[RawConnection]:
    """A client with a token of this role."""
    connection, answer = await shown_by(regions.brokers[to].port, regions.token(role))
    assert answer[0] == T.CONNECTED
    yield connection
    await connection.close()


COMMANDS: Final[Mapping[str, Callable[[str], tuple[int, Any]]]] = {
    "produce": lambda topic: (T.PRODUCER, pb.CommandProducer(topic=topic, producer_id=1, request_id=1)),
    "consume": lambda topic: (
        T.SUBSCRIBE,
        pb.CommandSubscribe(
            topic=topic, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1, request_id=1
        ),
    ),
    "look up": lambda topic: (T.LOOKUP, pb.CommandLookupTopic(topic=topic, request_id=1)),
    "count partitions": lambda topic: (
        T.PARTITIONED_METADATA,
        pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1),
    ),
    "read the schema": lambda topic: (T.GET_SCHEMA, pb.CommandGetSchema(topic=topic, request_id=1)),
    "add a schema": lambda topic: (
        T.GET_OR_CREATE_SCHEMA,
        pb.CommandGetOrCreateSchema(topic=topic, request_id=1, schema=STRING),
    ),
    "list": lambda topic: (
        T.GET_TOPICS_OF_NAMESPACE,
        pb.CommandGetTopicsOfNamespace(namespace=namespace_of(topic), request_id=1),
    ),
    "watch": lambda topic: (
        T.WATCH_TOPIC_LIST,
        pb.CommandWatchTopicList(namespace=namespace_of(topic), topics_pattern=".*", request_id=1, watcher_id=1),
    ),
}


def namespace_of(topic: str) -> str:
    return topic.partition("://")[2].rpartition("/")[0]


async def refusal(regions: Guarded, role: str, what: str, topic: str, *, to: str = "east") -> tuple[int, str] | None:
    """The refusal's code and message, or None if the command is served."""
    async with connected(regions, role, to=to) as connection:
        connection.say(*COMMANDS[what](topic))
        message: Any = (await connection.hear_any()).message
    for code, sentence in (("error", "message"), ("error_code", "error_message")):
        if code in message.DESCRIPTOR.fields_by_name and message.HasField(code):
            return getattr(message, code), getattr(message, sentence)
    return None


async def refused(regions: Guarded, role: str, topic: str, *, to: str = "east") -> set[str]:
    """The commands refused for lack of permission; the others are served, or fail for another reason."""
    found = set()
    for what in COMMANDS:
        said = await refusal(regions, role, what, topic, to=to)
        if said is not None and said[0] == ServerError.AUTHORIZATION:
            found.add(what)
    return found


EVERYTHING: Final = frozenset(COMMANDS)
LISTS: Final = frozenset({"list", "watch"})


async def test_without_a_permission_nothing_is_served_and_nothing_is_revealed(guarded: Guarded) -> None:
    """A refusal reads the same whether or not the topic, namespace or tenant exists."""
    write(guarded, "PUT", "/admin/v2/persistent/shop/n/there")
    for what in COMMANDS:
        told = set()
        for topic in ("shop/n/there", "shop/n/gone", "shop/none/there", "none/n/there"):
            said = await refusal(guarded, "stranger", what, f"persistent://{topic}")
            assert said is not None and said[0] == ServerError.AUTHORIZATION, (what, said)
            told.add(said[1].replace(topic, "IT").replace(topic.rpartition("/")[0], "IT"))
        assert len(told) == 1, told
    assert "gone" not in " ".join(guarded.answer("/admin/v2/persistent/shop/n", guarded.admin).json)


async def test_a_permission_on_a_namespace_is_for_all_its_topics(guarded: Guarded) -> None:
    topic = "persistent://shop/n/of-the-namespace"
    grant(guarded, "namespaces/shop/n", "writer", "produce")
    grant(guarded, "namespaces/shop/n", "reader", "consume")
    grant(guarded, "namespaces/shop/n", "functions-only", "functions", "sources", "sinks", "packages")
    assert await refused(guarded, "writer", topic) == {"consume"}
    assert await refused(guarded, "reader", topic) == {"produce", "add a schema"}
    assert await refused(guarded, "functions-only", topic) == EVERYTHING
    assert await refused(guarded, "Writer", topic) == EVERYTHING
    assert await refused(guarded, "writer", "persistent://public/default/other") == EVERYTHING


async def test_a_permission_on_a_topic_is_for_it_and_its_partitions(guarded: Guarded) -> None:
    """Also for a topic that does not exist yet and that its producer creates."""
    grant(guarded, "persistent/shop/n/only", "topical", "produce")
    assert await refused(guarded, "topical", "persistent://shop/n/only") == {"consume"} | LISTS
    assert await refused(guarded, "topical", "persistent://shop/n/only-partition-0") == {"consume"} | LISTS
    assert await refused(guarded, "topical", "persistent://shop/n/only2") == EVERYTHING
    assert await refused(guarded, "topical", "non-persistent://shop/n/only") == EVERYTHING
    write(guarded, "DELETE", "/admin/v2/persistent/shop/n/only?force=true")
    assert await refused(guarded, "topical", "persistent://shop/n/only") == EVERYTHING


async def test_a_producer_with_an_initial_subscription_consumes_too(guarded: Guarded) -> None:
    topic = "persistent://shop/n/initial"
    grant(guarded, "persistent/shop/n/initial", "half", "produce")
    asked = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, initial_subscription_name="dead")
    async with connected(guarded, "half") as connection:
        connection.say(T.PRODUCER, asked)
        assert (await connection.hear(T.ERROR)).error == pb.AuthorizationError
        grant(guarded, "persistent/shop/n/initial", "half", "produce", "consume")
        connection.say(T.PRODUCER, asked)
        await connection.hear(T.PRODUCER_SUCCESS)


async def test_a_revoked_permission_admits_nobody_and_disconnects_nobody(guarded: Guarded) -> None:
    topic = "persistent://shop/n/revoked"
    grant(guarded, "namespaces/shop/n", "brief", "produce", "consume")
    async with connected(guarded, "brief") as connection:
        await connection.producer(topic, user_provided_producer_name=False)
        await connection.subscribed(topic, "s", 7)
        revoke(guarded, "namespaces/shop/n", "brief")
        assert await refused(guarded, "brief", topic) == EVERYTHING
        connection.send("p", 0, b"still here")
        assert await connection.receipt() == (0, True)
        connection.say(T.FLOW, pb.CommandFlow(consumer_id=7, messagePermits=1))
        assert (await connection.hear_any())[0] == T.MESSAGE
        connection.say(T.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=7, request_id=50))
        assert (await connection.hear(T.ERROR)).error == pb.AuthorizationError
        earliest = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        connection.say(T.SEEK, pb.CommandSeek(consumer_id=7, request_id=51, message_id=earliest))
        assert (await connection.hear(T.ERROR)).error == pb.AuthorizationError


async def test_admin_roles_may_do_everything_in_their_tenant_and_nothing_outside(guarded: Guarded) -> None:
    boss = partial(guarded.ask, token=guarded.token("boss"))
    assert await refused(guarded, "boss", "persistent://shop/n/of-the-boss") == set()
    assert await refused(guarded, "boss", "persistent://public/default/other") == EVERYTHING
    for method, path, status in (
        ("PUT", "/admin/v2/persistent/shop/n/made", 204),
        ("GET", "/admin/v2/persistent/shop/n/made/stats", 200),
        ("GET", "/meridian/v1/topics/persistent/shop/n/made/gaps", 200),
        ("DELETE", "/admin/v2/persistent/shop/n/made", 204),
        ("GET", f"{NS}/shop", 200),
        ("PUT", f"{NS}/shop/second", 204),
        ("GET", f"{NS}/shop/second/permissions", 200),
        ("DELETE", f"{NS}/shop/second", 204),
        ("GET", f"{NS}/shop/n/topics", 200),
        ("GET", "/lookup/v2/topic/persistent/shop/n/t", 200),
        ("GET", f"{NS}/public", 403),
        ("GET", f"{NS}/public/default", 403),
        ("GET", f"{NS}/public/default/topics", 403),
        ("PUT", f"{NS}/shop%2Fn/x", 403),
        ("PUT", f"{NS}/Shop/x", 403),
        ("PUT", "/admin/v2/persistent/public/default/stolen", 403),
        ("GET", "/admin/v2/persistent/public/default/guarded/stats", 403),
        ("GET", "/lookup/v2/topic/persistent/public/default/t", 403),
        ("GET", TENANTS, 403),
        ("GET", f"{TENANTS}/shop", 403),
        ("PUT", f"{TENANTS}/mine", 403),
        ("DELETE", f"{TENANTS}/shop", 403),
        ("GET", "/admin/v2/clusters", 403),
        ("GET", "/admin/v2/brokers/configuration/runtime", 403),
        ("POST", "/meridian/v1/export", 403),
        ("GET", "/meridian/v1/metadata/status", 403),
        ("GET", "/nothing/there", 403),
    ):
        assert boss(path, method=method) == status, (method, path)
    body = {"adminRoles": ["boss", "deputy"], "allowedClusters": ["east", "west"]}
    assert guarded.answer(f"{TENANTS}/shop", guarded.token("boss"), "POST", body).status == 403


def test_a_role_without_permission_learns_nothing_over_http_either(guarded: Guarded) -> None:
    grant(guarded, "namespaces/shop/n", "surfer", "produce")
    surfer, stranger = guarded.token("surfer"), guarded.token("stranger")
    write(guarded, "PUT", "/admin/v2/persistent/shop/n/seen")
    for path in (
        "/lookup/v2/topic/persistent/shop/n/seen",
        "/admin/v2/persistent/shop/n/seen/partitions",
        f"{NS}/shop/n/topics",
    ):
        assert guarded.ask(path, surfer) == 200
        missing = path.replace("/n/", "/none/")
        one, other = guarded.answer(path, stranger), guarded.answer(missing, stranger)
        assert (one.status, one.reason.replace(path, "")) == (403, other.reason.replace(missing, ""))
    for path, method in (
        ("/admin/v2/persistent/shop/n/seen", "DELETE"),
        ("/admin/v2/persistent/shop/n/seen/permissions", "GET"),
        (f"{NS}/shop/n/permissions/surfer", "POST"),
        (f"{NS}/shop/n", "GET"),
    ):
        assert guarded.ask(path, surfer, method) == 403
    assert guarded.ask("/admin/v2/persistent/shop/n/seen/partitions?checkAllowAutoCreation=true", stranger) == 403


def test_the_real_client_is_served_across_regions(guarded: Guarded) -> None:
    """Messages and acknowledgements are replicated between regions whose clients need permissions."""
    topic = "persistent://shop/n/real"
    grant(guarded, "persistent/shop/n/real", "app", "produce", "consume")
    wait_until(
        lambda: "app" in permissions(guarded, "persistent/shop/n/real", of="west"), "west to have the permission"
    )
    east, west = guarded.client("east", guarded.app), guarded.client("west", guarded.app)
    consumer = west.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    east.create_producer(topic).send(b"for those who may")
    assert consumer.receive(PATIENCE_MS).data() == b"for those who may"
    with pytest.raises(pulsar.AuthorizationError):
        east.create_producer("persistent://shop/n/other")
    with pytest.raises(pulsar.AuthorizationError):
        east.subscribe("persistent://public/default/other", "s")
    east.close()
    west.close()


def test_two_regions_grant_at_the_same_time_and_both_stay(guarded: Guarded) -> None:
    """Each role is a path of its own; a revocation or deletion in one region takes effect in all."""
    write(guarded, "PUT", f"{NS}/shop/both", BOTH)
    ready = f"{NS}/shop/both"
    wait_until(lambda: guarded.ask(ready, guarded.admin, of="west") == 200, "west to have the namespace")
    one, topic = "namespaces/shop/both", "persistent/shop/both/t"
    for number in range(5):
        grant(guarded, one, f"east-{number}", "produce", of="east")
        grant(guarded, one, f"west-{number}", "consume", of="west")
    grant(guarded, topic, "a/b", "consume", of="west")
    expected = {f"east-{number}": ["produce"] for number in range(5)}
    expected |= {f"west-{number}": ["consume"] for number in range(5)}

    def has(what: str, wanted: Mapping[str, list[str]]) -> bool:
        return all(permissions(guarded, what, of=region) == wanted for region in guarded.brokers)

    wait_until(lambda: has(one, expected), "both regions to have all permissions")
    wait_until(lambda: has(topic, expected | {"a/b": ["consume"]}), "both regions to have the topic's permissions")
    revoke(guarded, one, "west-0", of="east")
    grant(guarded, one, "west-1", "produce", of="east")
    del expected["west-0"]
    wait_until(lambda: has(one, expected | {"west-1": ["produce"]}), "both regions to have the changed permissions")
    write(guarded, "DELETE", f"{NS}/shop/both")
    wait_until(lambda: guarded.ask(ready, guarded.admin, of="west") == 404, "the namespace to be deleted in west")
    write(guarded, "PUT", f"{NS}/shop/both", BOTH, of="west")
    wait_until(lambda: guarded.ask(ready, guarded.admin) == 200, "east to have the new namespace")
    assert has(one, {})
    assert has(topic, {})
    found = guarded.answer("/meridian/v1/metadata/conflicts", guarded.admin).json
    assert (found["count"], found["hidden"]) == (0, []), found


def shadow_request(guarded: Guarded, role: str, method: str, path: str, body: Any = ...) -> HttpAnswer:
    return guarded.answer(f"/admin/v2/persistent/{path}", guarded.token(role), method, body)


async def test_a_shadow_has_permissions_of_its_own(guarded: Guarded) -> None:
    source, shadow = "shop/n/source", "shop/n/its-shadow"
    write(guarded, "PUT", f"/admin/v2/persistent/{source}")
    write(guarded, "POST", f"/admin/v2/persistent/{source}/shadowTopics", f"persistent://{shadow}")
    grant(guarded, f"persistent/{shadow}", "of-shadow", "consume")
    grant(guarded, f"persistent/{source}", "of-source", "consume")
    for role, may, may_not in (("of-shadow", shadow, source), ("of-source", source, shadow)):
        assert await refusal(guarded, role, "consume", f"persistent://{may}") is None
        assert "consume" in await refused(guarded, role, f"persistent://{may_not}")
    write(guarded, "DELETE", f"/admin/v2/persistent/{source}?cascade=true&force=true")
    assert await refused(guarded, "of-shadow", f"persistent://{shadow}") == EVERYTHING


def test_shadows_are_made_listed_and_deleted_by_admins_of_both_sides(guarded: Guarded) -> None:
    """It takes an admin of the source's tenant (Pulsar's SHADOW_TOPIC operation) and of the shadow's."""
    write(guarded, "PUT", f"{TENANTS}/lab", {"adminRoles": ["boss", "chief"], "allowedClusters": ["east", "west"]})
    write(guarded, "PUT", f"{TENANTS}/dark", {"adminRoles": ["chief"], "allowedClusters": ["east", "west"]})
    for namespace in ("lab/n", "dark/n"):
        write(guarded, "PUT", f"{NS}/{namespace}")
    write(guarded, "PUT", "/admin/v2/persistent/lab/n/source")
    ask = partial(shadow_request, guarded)
    mine, theirs = "persistent://lab/n/mine", "persistent://dark/n/theirs"
    having = {"PULSAR.SHADOW_SOURCE": "persistent://lab/n/source"}
    listing = "lab/n/source/shadowTopics"
    for role, status in (("stranger", 403), ("boss", 204)):
        assert ask(role, "POST", listing, mine).status == status
        assert ask(role, "GET", listing).status == (200 if status == 204 else 403)
    assert ask("boss", "POST", listing, theirs).status == 403
    assert ask("boss", "POST", listing, {"topic": theirs}).status == 403
    write(guarded, "POST", f"{TENANTS}/dark", {"adminRoles": ["dark-chief"], "allowedClusters": ["east", "west"]})
    for path, body in (
        ("dark/n/theirs", having),
        ("dark/n/theirs/partitions", {"partitions": 2, "properties": having}),
    ):
        assert ask("dark-chief", "PUT", path, body).status == 403, "the source is not theirs"
    assert ask("boss", "PUT", "dark/n/theirs", having).status == 403
    write(guarded, "PUT", "/admin/v2/persistent/dark/n/theirs", having)
    assert ask("boss", "PUT", listing, [mine, theirs]).status == 403
    assert ask("boss", "PUT", listing, [mine]).status == 204
    assert ask("boss", "DELETE", f"{listing}?topic={quote(theirs, safe='')}").status == 403
    assert ask("boss", "DELETE", "lab/n/source?cascade=true").status == 403
    assert guarded.answer(f"/admin/v2/persistent/{listing}", guarded.admin).json == [mine]
    assert ask("dark-chief", "DELETE", "dark/n/theirs").status == 204, "a shadow is a topic of its own tenant"
    assert ask("boss", "DELETE", f"{listing}?topic={quote(mine, safe='')}").status == 204
    assert ask("boss", "DELETE", "lab/n/source?cascade=true").status == 204


async def test_the_replicator_of_a_region_of_pulsar_needs_no_permission_for_its_topics(guarded: Guarded) -> None:
    """It gets no permission for other topics, and none to publish as a client."""
    write(guarded, "PUT", "/admin/v2/clusters/far", {"kind": "pulsar", "replicatorRole": "far-brokers"})
    write(guarded, "PUT", f"{TENANTS}/wide", {"adminRoles": [], "allowedClusters": ["east", "far"]})
    write(guarded, "PUT", f"{NS}/wide/n", {"replication_clusters": ["east", "far"]})
    topic = "persistent://wide/n/t"
    write(guarded, "PUT", "/admin/v2/persistent/wide/n/t")
    assert await refused(guarded, "far-brokers", topic) == {"produce", "consume"} | LISTS
    assert await refused(guarded, "far-brokers", "persistent://shop/n/t") == EVERYTHING
    async with connected(guarded, "far-brokers") as connection:
        await connection.producer(topic, producer_name="pulsar.repl.far-->east")
    write(guarded, "DELETE", f"{NS}/wide/n?force=true")


def test_the_command_line_grants_in_all_regions_of_a_namespace(guarded: Guarded) -> None:
    """An admin role of the tenant may grant in one region at a time."""
    admin, boss = guarded.directory / "admin.jwt", guarded.directory / "boss.jwt"
    for file, role in ((admin, "admin"), (boss, "boss")):
        file.write_text(guarded.token(role))
        file.chmod(0o600)
    east, west = (guarded.brokers[name].admin_url for name in ("east", "west"))

    def run(*words: str, by: Path = admin) -> str:
        done = meridian_text(*words, "--url", east, "--token-file", str(by))
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = run("namespaces", "grant", "shop/n", "cli", "produce", "consume", "--at", f"west={west}")
    assert "(set in east, west)" in told
    assert permissions(guarded, "namespaces/shop/n", of="west")["cli"] == ["consume", "produce"]
    assert "cli" in run("namespaces", "permissions", "shop/n", by=boss)
    run("topics", "grant", "shop/n/by-hand", "of-boss", "produce", "--only-here", by=boss)
    assert "of-boss" in run("topics", "permissions", "shop/n/by-hand", by=boss)
    run("topics", "revoke", "shop/n/by-hand", "of-boss", "--only-here", by=boss)
    run("namespaces", "revoke", "shop/n", "cli", "--at", f"west={west}")
    for what in ("namespaces/shop/n", "persistent/shop/n/by-hand"):
        assert not {"cli", "of-boss"} & permissions(guarded, what).keys()
    refused = ["namespaces", "grant", "public/default", "x", "produce", "--only-here", "--url", east]
    done = meridian_text(*refused, "--token-file", str(boss))
    assert done.returncode != 0
    assert "role boss may not" in done.stderr


def test_an_export_is_for_super_users(guarded: Guarded) -> None:
    for role, status in (("boss", 403), ("admin", 200)):
        token = guarded.token(role, "--scope", "export")
        assert guarded.answer("/meridian/v1/export", token, "POST", {}).status == status


def test_without_authentication_a_broker_that_asks_for_permissions_does_not_start(tmp_path: Path) -> None:
    settings = ("authorizationEnabled=true", f"dataDirectory={tmp_path / 'data'}", "brokerServicePort=0")
    assignments = [part for one in settings for part in ("--set", one)]
    refused = meridian_text("broker", *assignments)
    assert refused.returncode == 2
    assert "authorizationEnabled=true: set authenticationEnabled too" in refused.stderr
    assert "Traceback" not in refused.stderr
