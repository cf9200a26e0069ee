# SPDX-License-Identifier: Apache-2.0
"""A region issues the operator's token: from the key beside the broker, through Kubernetes, to an admin change."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.token_watch import TokenWatch
from meridian_operator.kube.client import KubeClient
from meridian_operator.main import issuers
from meridian_operator.plan.changes import CreateTopic
from meridian_operator.plan.observed import TopicName
from meridian_operator.regions.client import RegionClient
from meridian_operator.regions.directory import Region, Tokens
from meridian_operator.regions.observing import Observer
from support.brokers.broker_regions import until
from support.brokers.forked_meridian import MERIDIAN
from support.brokers.guarded_regions import Guarded, guarded_regions, tokens_command
from support.kubernetes.kube_api import KubeApi

PLACE = "meridian-system/operator-token-east"
NAMESPACE, NAME = PLACE.split("/")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from guarded_regions(tmp_path_factory.mktemp("guarded"))


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with KubeApi() as api:
        yield api


@contextmanager
def issuing(api: KubeApi, key: Path, directory: Path) -> Iterator[Path]:
    """The region's token issuer, run as in its pod, and the file with its output."""
    (directory / "keys").mkdir()
    (directory / "keys/secret.key").write_bytes(key.read_bytes())
    (directory / "account").mkdir()
    (directory / "account/token").write_text("of-the-issuer\n")
    options = {
        "--secret": PLACE,
        "--region": "east",
        "--keys": str(directory / "keys"),
        "--next-keys": str(directory / "next"),
        "--kubernetes": f"http://127.0.0.1:{api.port}",
        "--account": str(directory / "account"),
    }
    command = [*MERIDIAN, "tokens", "issue", *(part for pair in options.items() for part in pair)]
    said = directory / "log"
    with said.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield said
        finally:
            process.terminate()
            code = process.wait(30)
    assert code == 0, said.read_text()


def held(api: KubeApi) -> str:
    secret = api.get("secrets", NAME, NAMESPACE) or {}
    return base64.b64decode(secret.get("data", {}).get("token", "")).decode()


async def watched(api: KubeApi, tokens: Tokens, settings: Settings) -> tuple[KubeClient, TokenWatch]:
    kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="of-the-operator"))
    return kube, TokenWatch(kube, settings, tokens)


def settings_of(regions: dict[str, Any]) -> Settings:
    return Settings.model_validate({"regions": regions})


async def test_the_operator_administers_with_a_token_that_the_region_issued(
    api: KubeApi, guarded: Guarded, tmp_path: Path
) -> None:
    url = guarded.brokers["east"].admin_url
    one = {"url": url, "tokenSecret": PLACE, "tokenIssuer": "east/meridian-token-issuer"}
    settings = settings_of({"east": one})
    (tmp_path / "files").mkdir()
    (tmp_path / "files/default").write_text(guarded.admin)
    tokens = Tokens(tmp_path / "files", issuers(settings))
    topic = TopicName.parse("persistent://public/default/issued")
    api.create("secrets", NAME, NAMESPACE)
    kube, watch = await watched(api, tokens, settings)
    async with aiohttp.ClientSession() as http:
        observer = Observer(RegionClient(Region("east", url), http, tokens))
        try:
            await watch.tried()
            seen = await observer.see(topic)
            assert seen.reason == "TokenRefused", "no other token is sent instead"
            assert "kubectl -n east logs deployment/meridian-token-issuer" in seen.problem
            with issuing(api, guarded.key, tmp_path) as said:
                await until(lambda: tokens.expires("east") is not None and "issued" in said.read_text())
                await observer.apply(CreateTopic("east", topic, 0))
                seen = await observer.see(topic)
            assert seen.topic is not None
        finally:
            await observer.close()
            await watch.close()
            await kube.close()
    assert ["issued a token for region east" in line for line in said.read_text().splitlines()] == [True]
    assert ("Bearer of-the-issuer", f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}") in [
        (token, path) for token, path, _ in api.writes
    ]
    west = guarded.brokers["west"].admin_url
    async with aiohttp.ClientSession() as http:
        answer = await http.get(f"{west}/admin/v2/tenants", headers={"Authorization": f"Bearer {held(api)}"})
        assert answer.status == 401, "it is of no use in another region"


async def test_an_issuer_waits_for_its_secret_and_for_the_right_to_write_it(api: KubeApi, tmp_path: Path) -> None:
    tokens_command("create-secret-key", str(tmp_path / "key"))
    with issuing(api, tmp_path / "key", tmp_path) as said:
        await until(lambda: ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}") in api.requests)
        api.create("secrets", NAME, NAMESPACE)
        await until(lambda: "issued a token" in said.read_text())
    assert held(api)
    assert "HTTP 404: it does not exist: the operator's chart creates it" in said.read_text().splitlines()[0]


@pytest.mark.parametrize("junk", [b"a\nb", b"\xff\xfe", b"x" * 20_000, b"two words"])
async def test_a_secret_that_is_not_a_token_is_not_sent(api: KubeApi, junk: bytes) -> None:
    """A region that writes something else harms only itself."""
    api.create("secrets", NAME, NAMESPACE, data={"token": base64.b64encode(junk).decode()})
    api.create("secrets", "other", NAMESPACE, data={"token": base64.b64encode(b"a.b.c").decode()})
    place = {"tokenSecret": PLACE, "tokenIssuer": "east/i"}
    settings = settings_of(
        {
            "east": {"url": "http://east", **place},
            "west": {"url": "http://west", **place, "tokenSecret": f"{NAMESPACE}/other"},
        }
    )
    tokens = Tokens(None, issuers(settings))
    kube, watch = await watched(api, tokens, settings)
    await watch.tried()
    with pytest.raises(OSError, match="has not issued a token yet"):
        tokens.of("east")
    assert tokens.of("west") == "a.b.c"
    await watch.close()
    await kube.close()


async def test_a_token_stays_in_force_while_its_secret_cannot_be_read(api: KubeApi) -> None:
    settings = settings_of({"east": {"url": "http://east", "tokenSecret": PLACE, "tokenIssuer": "east/i"}})
    tokens = Tokens(None, issuers(settings))
    api.create("secrets", NAME, NAMESPACE, data={"token": base64.b64encode(b"a.b.c").decode()})
    kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="x"))
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            api.delete("secrets", NAME, NAMESPACE)
        elif looks == 2:
            assert tokens.of("east") == "a.b.c"
            api.create("secrets", NAME, NAMESPACE, data={"token": base64.b64encode(b"d.e.f").decode()})

    watch = TokenWatch(kube, settings, tokens, sleep)
    await watch.tried()
    await until(lambda: tokens.of("east") == "d.e.f")
    await watch.close()
    await kube.close()
