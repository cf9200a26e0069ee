# SPDX-License-Identifier: Apache-2.0
"""Who is let in: the real client with a signed token, without one, with a wrong one; the admin API by role; regions
that recognise each other by the peer token; no secrets in the log."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_operator.plan.changes import CreateTopic, SetPolicy
from meridian_operator.plan.observed import TopicName
from meridian_operator.regions.client import RegionClient
from meridian_operator.regions.directory import Region, Tokens
from meridian_operator.regions.observing import Observer
from support.brokers.broker_process import http, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.guarded_regions import Guarded, guarded_regions, new_token, shown_by, tokens_command
from support.brokers.peers import calls_as
from support.brokers.region_clients import PATIENCE_MS
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/guarded"


def run(*arguments: str) -> str:
    done = meridian_text(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded_regions(tmp_path_factory.mktemp("guarded"))


def test_a_client_with_a_token_is_served_in_both_regions(guarded: Guarded) -> None:
    east, west = guarded.client("east", guarded.app), guarded.client("west", guarded.app)
    consumer = west.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    east.create_producer(TOPIC).send(b"for those who may")
    assert consumer.receive(PATIENCE_MS).data() == b"for those who may"
    east.close()
    west.close()


@pytest.mark.parametrize("wrong", ["none", "damaged", "foreign", "expired", "peer"])
async def test_others_are_turned_away(guarded: Guarded, wrong: str, tmp_path: Path) -> None:
    tokens_command("create-secret-key", str(tmp_path / "foreign"))
    shown = {
        "none": None,
        "damaged": guarded.app[:-3] + "xyz",
        "foreign": tokens_command("create", "--secret-key", str(tmp_path / "foreign"), "--subject", "admin").strip(),
        "expired": guarded.token("admin", "--expires", "0s"),
        "peer": guarded.peer,
    }[wrong]
    connection = RawConnection(*await asyncio.open_connection("127.0.0.1", guarded.brokers["east"].port))
    method, data = ("token", shown.encode()) if shown else ("", b"")
    connection.say(T.CONNECT, pb.CommandConnect(client_version="raw", auth_method_name=method, auth_data=data))
    told = await connection.hear(T.ERROR)
    assert told.error == pb.AuthenticationError
    assert await connection.ended()
    await connection.close()
    assert guarded.ask("/admin/v2/tenants", shown) == 401


async def test_no_token_makes_a_client_a_peer(guarded: Guarded) -> None:
    """Tokens are often issued for names that users choose, and one of these may be a name that brokers use."""
    token = jwt.encode({"sub": "meridian-peer"}, guarded.key.read_bytes(), "HS256")
    for path, method in (("/admin/v2/tenants", "GET"), ("/admin/v2/tenants/mine", "PUT")):
        assert guarded.ask(path, token, method) == 401
    connection = RawConnection(*await asyncio.open_connection("127.0.0.1", guarded.brokers["east"].port))
    credentials = pb.CommandConnect(client_version="raw", auth_method_name="token", auth_data=token.encode())
    connection.say(T.CONNECT, credentials)
    assert "reserved" in (await connection.hear(T.ERROR)).message
    assert await connection.ended()
    await connection.close()


async def connected(guarded: Guarded, token: str, *, can_refresh: bool = False) -> tuple[RawConnection, Any]:
    return await shown_by(guarded.brokers["east"].port, token, can_refresh=can_refresh)


async def test_a_connection_ends_when_its_token_expires(guarded: Guarded) -> None:
    """Unless its client can be asked for a new token, and has one."""
    token = await asyncio.to_thread(guarded.token, "app", "--expires", "3s")
    other = await asyncio.to_thread(guarded.token, "other")
    deaf, able, late, wrong = [
        (await connected(guarded, token, can_refresh=can_refresh))[0] for can_refresh in (False, True, True, True)
    ]
    for one in (deaf, able):
        await one.producer("persistent://public/default/expiring", user_provided_producer_name=False)
    assert await deaf.ended()
    for one, answer in ((able, guarded.app), (late, token), (wrong, other)):
        asked = await one.hear(T.AUTH_CHALLENGE)
        assert (asked.challenge.auth_method_name, asked.challenge.auth_data) == ("token", b"PulsarAuthRefresh")
        one.say(T.AUTH_RESPONSE, new_token(answer))
    assert "has expired" in (await late.hear(T.ERROR)).message
    assert "another role" in (await wrong.hear(T.ERROR)).message
    for one in (late, wrong):
        assert await one.ended()
    able.send("p", 0, b"still here")
    assert await able.receipt() == (0, True)
    for one in (deaf, able, late, wrong):
        await one.close()


async def test_nobody_renews_a_token_unasked(guarded: Guarded) -> None:
    connection, _ = await connected(guarded, guarded.app, can_refresh=True)
    connection.say(T.AUTH_RESPONSE, new_token(guarded.admin))
    assert await connection.ended()
    await connection.close()


async def test_a_token_for_administration_neither_produces_nor_consumes(guarded: Guarded) -> None:
    token = await asyncio.to_thread(guarded.token, "admin", "--scope", "admin", "--expires", "1h")
    assert guarded.ask("/admin/v2/tenants", token) == 200
    connection, answer = await connected(guarded, token)
    assert answer[0] == T.ERROR
    assert "admin API only" in answer.message.message
    assert await connection.ended()
    await connection.close()
    unknown = jwt.encode({"sub": "admin", "meridian_scope": "all"}, guarded.key.read_bytes(), "HS256")
    assert guarded.ask("/admin/v2/tenants", unknown) == 401


async def test_a_token_signed_with_a_private_key_is_valid(guarded: Guarded) -> None:
    """A token signed with the public key as an HS256 secret is not: anybody may know these bytes."""
    public = guarded.keys / "pair.pem"
    options = ("--private-key", str(guarded.private), "--key-id", "pair", "--subject", "admin")
    token = (await asyncio.to_thread(tokens_command, "create", *options)).strip()
    assert guarded.ask("/admin/v2/tenants", token) == 200
    connection, answer = await connected(guarded, token)
    assert answer[0] == T.CONNECTED
    await connection.close()
    said = token.split(".")[1].encode()
    for head in (b'{"alg":"HS256"}', b'{"alg":"HS256","kid":"pair"}', b'{"alg":"none"}'):
        begin = base64.urlsafe_b64encode(head).rstrip(b"=") + b"." + said
        proof = base64.urlsafe_b64encode(hmac.digest(public.read_bytes(), begin, "sha256")).rstrip(b"=")
        for forged in (begin + b"." + proof, begin + b"."):
            assert guarded.ask("/admin/v2/tenants", forged.decode()) == 401
            connection, answer = await connected(guarded, forged.decode())
            assert answer[1].error == pb.AuthenticationError
            await connection.close()


async def test_a_token_for_one_region_is_valid_there_alone(guarded: Guarded) -> None:
    both = ("--region", "west", "--region", "east")
    for options, status in ((("--region", "east"), 200), (both, 200), (("--region", "west"), 401)):
        token = await asyncio.to_thread(guarded.token, "admin", *options)
        assert guarded.ask("/admin/v2/tenants", token) == status
        connection, answer = await connected(guarded, token)
        assert answer[0] == (T.CONNECTED if status == 200 else T.ERROR)
        await connection.close()


FOR_EXPORTS = {
    ("POST", "/meridian/v1/export"),
    ("DELETE", "/meridian/v1/export/{snapshot}"),
    ("GET", "/meridian/v1/export/{snapshot}/{table}"),
}
FOR_EVERYBODY = {("GET", f"/admin/v2/brokers/{one}") for one in ("ready", "health")} | {
    ("GET", one) for one in ("/status.html", "/metrics", "/metrics/")
}


async def test_a_token_for_the_export_opens_the_export_and_nothing_else(guarded: Guarded) -> None:
    """Checked for every route of the OpenAPI document, so a new route is closed to it too."""
    token = await asyncio.to_thread(guarded.token, "admin", "--scope", "export", "--expires", "1h")
    paths = http("GET", f"{guarded.brokers['east'].admin_url}/meridian/v1/openapi.json", headers=bearer(guarded.admin))
    opened = set()
    async with aiohttp.ClientSession(guarded.brokers["east"].admin_url, headers=bearer(token)) as session:
        for path, verbs in paths.json["paths"].items():
            place = re.sub(r"{(\w+)}", lambda name: FILLED.get(name[1], "1"), path)
            for method in map(str.upper, verbs):
                async with session.request(method, place) as answer:
                    if answer.status != 403:
                        opened.add((method, path))
    assert opened == FOR_EXPORTS | FOR_EVERYBODY
    for path in ("/nothing/there", "/meridian/v1/export/1", "/lookup/v2/topic/persistent/public/default/guarded"):
        assert guarded.ask(path, token) == 403
    connection, answer = await connected(guarded, token)
    assert answer[0] == T.ERROR
    assert "for the export only" in answer.message.message
    await connection.close()


def test_the_export_is_read_with_a_token_for_it_of_a_super_user(guarded: Guarded) -> None:
    east = guarded.brokers["east"].admin_url
    token = guarded.token("admin", "--scope", "export")
    taken = http("POST", f"{east}/meridian/v1/export", {}, headers=bearer(token))
    assert taken.status == 200
    table = f"{east}/meridian/v1/export/{taken.json['snapshot']}/topics"
    assert http("GET", table, headers=bearer(token)).status == 200
    assert guarded.ask("/meridian/v1/export", guarded.token("app", "--scope", "export"), "POST") == 403


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


FILLED = {"domain": "persistent", "tenant": "public", "namespace": "default", "topic": "guarded", "cluster": "east"}


def test_the_manifest_is_for_its_owner_and_its_token_expires(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens_command("manifest", "--to", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    data = json.loads(file.read_text())["data"]
    token = base64.b64decode(data["admin.jwt"]).decode()
    claims = jwt.decode(token, base64.b64decode(data["secret.key"]), algorithms=["HS256"])
    assert 89 * 86400 < claims["exp"] - time.time() <= 90 * 86400
    assert len(base64.b64decode(data["peer.token"])) >= 32
    verifying = base64.b64decode(data["verify.jwt"]).decode()
    narrowed = jwt.decode(verifying, base64.b64decode(data["secret.key"]), algorithms=["HS256"])
    assert (narrowed["meridian_scope"], narrowed["exp"]) == ("export", claims["exp"])


def test_each_part_of_a_deployment_gets_a_manifest_with_what_it_needs(tmp_path: Path) -> None:
    """The operator needs no manifest: regions issue its tokens."""
    run("tokens", "manifest", "--directory", str(tmp_path / "tokens"))
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    held = {
        file.name: json.loads(file.read_text())["data"].keys()
        for file in (tmp_path / "tokens").glob("*.json")
        if file.stat().st_mode & 0o777 == 0o600
    }
    assert held == {"regions.json": {"secret.key", "peer.token"}, "verifier.json": {"verify.jwt"}}
    assert (tmp_path / "tokens/admin.jwt").stat().st_mode & 0o777 == 0o600


def test_the_operator_gets_a_token_for_each_region_that_can_only_administer(tmp_path: Path) -> None:
    run("tokens", "manifest", "--directory", str(tmp_path / "tokens"), "--region", "east", "--region", "west")
    assert (tmp_path / "tokens/admin.jwt").stat().st_mode & 0o777 == 0o600
    held = {
        name: json.loads((tmp_path / f"tokens/{name}.json").read_text())["data"] for name in ("regions", "operator")
    }
    key = base64.b64decode(held["regions"]["secret.key"])
    assert held["operator"].keys() == {"east.jwt", "west.jwt"}
    for region in ("east", "west"):
        token = base64.b64decode(held["operator"][f"{region}.jwt"]).decode()
        claims = jwt.decode(token, key, algorithms=["HS256"], audience=region)
        assert (claims["aud"], claims["meridian_scope"]) == ([region], "admin")
        assert claims["exp"] - time.time() <= 90 * 86400


async def test_the_operator_manages_each_region_with_its_own_token(guarded: Guarded, tmp_path: Path) -> None:
    """A token is of no use in another region, and a replacement is used at once."""
    admin = ("--scope", "admin", "--expires", "1h")
    for region in ("east", "west"):
        token = await asyncio.to_thread(guarded.token, "admin", *admin, "--region", region)
        (tmp_path / region).write_text(token)
    topic = TopicName.parse("persistent://public/default/managed")
    async with aiohttp.ClientSession() as http:
        observers = {
            region: Observer(RegionClient(Region(region, broker.admin_url), http, Tokens(tmp_path)))
            for region, broker in guarded.brokers.items()
        }
        for region, observer in observers.items():
            await observer.apply(CreateTopic(region, topic, 0))
            await observer.apply(SetPolicy(region, topic, "messageTTL", 60))
            seen = await observer.see(topic)
            assert seen.topic is not None and seen.topic.policies["messageTTL"] == 60
        right = (tmp_path / "east").read_text()
        (tmp_path / "east").write_text((tmp_path / "west").read_text())
        refused = await observers["east"].see(topic)
        assert refused.reason == "TokenRefused" and "the token is not for east" in refused.problem
        (tmp_path / "east").write_text(await asyncio.to_thread(guarded.token, "admin", *admin[:3], "0s"))
        refused = await observers["east"].see(topic)
        assert refused.reason == "TokenRefused" and "expired" in refused.problem
        (tmp_path / "east").write_text(right)
        assert (await observers["east"].see(topic)).reachable
        for observer in observers.values():
            await observer.close()


def test_a_reserved_name_gets_no_token(guarded: Guarded) -> None:
    refused = meridian_text("tokens", "create", "--secret-key", str(guarded.key), "--subject", "meridian-peer")
    assert refused.returncode == 1
    assert "reserved" in refused.stderr


async def test_a_peer_administers_nothing(guarded: Guarded) -> None:
    east = guarded.brokers["east"].admin_url
    calls = calls_as("west", east, guarded.peer.encode())
    topic = "/admin/v2/persistent/public/default/of-peers"
    assert guarded.ask(topic, guarded.admin, "PUT") == 204
    for path, method in (
        ("/admin/v2/clusters", "GET"),
        ("/admin/v2/tenants/theirs", "PUT"),
        ("/admin/v2/brokers/configuration/runtime", "GET"),
        ("/meridian/v1/export", "POST"),
        (f"{topic}/unload", "PUT"),
        (f"{topic}/properties", "GET"),
        (f"{topic}?force=true", "DELETE"),
        (f"{topic}/no-such-call", "GET"),
    ):
        assert (await calls.ask("east", method, path, seconds=30))[0] == 403, (method, path)
    assert (await calls.ask("east", "GET", f"{topic}/stats", seconds=30))[0] == 200


@pytest.mark.parametrize("content", [b"", b"\n", b"x", b"fifteen letters\n" * 2, b"a" * 31])
def test_a_broker_with_a_short_peer_secret_does_not_start(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "peer").write_bytes(content)
    refused = start_alone(tmp_path, f"peerTokenFile={tmp_path / 'peer'}")
    assert refused.returncode == 2
    assert "peerTokenFile" in refused.stderr
    assert "32" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_unusable_keys_end_the_start_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    asked = ("authenticationEnabled=true", f"tokenSecretKey={tmp_path / 'key'}")
    for settings in (asked, (f"peerTokenFile={tmp_path / 'absent'}",)):
        refused = start_alone(tmp_path, *settings)
        assert refused.returncode == 2
        assert settings[-1].partition("=")[0] in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_region_with_peers_needs_a_peer_secret(tmp_path: Path) -> None:
    listed = [{"name": name, "service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"} for name in "ab"]
    (tmp_path / "regions.json").write_text(json.dumps({"regions": listed}))
    refused = start_alone(tmp_path, "clusterName=a", f"regionsFile={tmp_path / 'regions.json'}")
    assert refused.returncode == 2
    assert "set peerTokenFile" in refused.stderr


def start_alone(directory: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Start a broker that is expected to exit at once."""
    chosen = ("brokerServicePort=0", "webServicePort=0", f"dataDirectory={directory / 'data'}", *settings)
    assignments = [part for one in chosen for part in ("--set", one)]
    return meridian_text("broker", *assignments)


def test_the_admin_api_is_for_super_users(guarded: Guarded) -> None:
    assert guarded.ask("/admin/v2/tenants", guarded.admin) == 200
    assert guarded.ask("/admin/v2/tenants", guarded.token("other")) == 200
    assert guarded.ask("/admin/v2/tenants", guarded.app) == 403
    assert guarded.ask("/admin/v2/tenants/stolen", guarded.app, "PUT") == 403
    assert guarded.ask("/meridian/v1/regions", guarded.app) == 403
    assert guarded.ask("/admin/v2/tenants/../brokers/ready") in (401, 404)
    assert guarded.ask("/nothing/there") == 401


def test_clients_may_look_up_and_probes_may_probe(guarded: Guarded) -> None:
    for path in ("/lookup/v2/topic/persistent/public/default/guarded", "/admin/v2/namespaces/public/default/topics"):
        assert guarded.ask(path, guarded.app) == 200
        assert guarded.ask(path) == 401
    assert guarded.ask("/admin/v2/persistent/public/default/guarded/partitions", guarded.app, "POST") == 403
    for path in ("/admin/v2/brokers/ready", "/admin/v2/brokers/health", "/status.html", "/metrics"):
        assert guarded.ask(path) == 200


def test_the_command_line_shows_its_token_and_no_log_holds_one(guarded: Guarded) -> None:
    file = guarded.directory / "app.jwt"
    tokens_command("create", "--secret-key", str(guarded.key), "--subject", "app", "--to", str(file))
    assert file.stat().st_mode & 0o077 == 0
    url = guarded.brokers["east"].service_url
    run("produce", "by-hand", "-m", "hello", "--url", url, "--token-file", str(file))
    told = run("consume", "by-hand", "-s", "s", "--earliest", "--count", "1", "--url", url, "--token-file", str(file))
    assert "hello" in told
    refused = meridian_text("produce", "by-hand", "-m", "x", "--url", url)
    assert refused.returncode != 0
    assert "token" in refused.stderr
    log = guarded.brokers["east"].log_file.read_text()
    signature = guarded.app.rsplit(".", 1)[1]
    assert signature not in log
    assert guarded.peer not in log


def test_partitions_are_made_in_the_other_region_by_its_peer(guarded: Guarded) -> None:
    path = "/admin/v2/persistent/public/default/parted/partitions"
    headers = {"Authorization": f"Bearer {guarded.admin}"}
    assert http("PUT", guarded.brokers["east"].admin_url + path, 3, headers=headers).status == 204
    client = guarded.client("east", guarded.app)
    client.create_producer("persistent://public/default/parted").send(b"x")
    west = guarded.brokers["west"].admin_url + path
    wait_until(
        lambda: http("GET", west, headers=headers).json.get("partitions") == 3, "the west to have three partitions"
    )
    client.close()
