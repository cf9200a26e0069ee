# SPDX-License-Identifier: Apache-2.0
"""Client of one region's admin REST API: describes many topics at once, applies changes. Every call has a timeout."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from meridian_operator.plan import changes, geo_topic
from meridian_operator.plan.observed import (
    CONFLICTS_SHOWN,
    Link,
    RegionSeen,
    ShadowSeen,
    SubscriptionSeen,
    TopicName,
    TopicSeen,
)
from meridian_operator.regions.directory import Authorities, BadAuthority, Region, Tokens
from meridian_operator.regions.synchronization import synchronization

CALL_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 5.0
REDIRECT: Final = 307
"""Another broker of the region serves the topic."""
REDIRECTS_MAX: Final = 5
"""Redirects to follow, as the owner of a topic may change meanwhile."""
QUOTA: Final = "backlogQuota"
POLICIES: Final = ("replication", "retention", "messageTTL", "deduplicationEnabled", "subscriptionSync", QUOTA)
"""Topic-level policies that objects control."""
_PROBE: Final = "/admin/v2/brokers/ready"
"""Any answer shows that the region can be reached. This path is cheap and needs no token."""
_CONFLICTS: Final = "/meridian/v1/metadata/conflicts"
_SETTINGS: Final = "/admin/v2/brokers/configuration"
_ABSENT: Final[tuple[Any, ...]] = (None, {}, [], "")


class Refused(Exception):
    """A region refused a request. The message has the region and its reason."""

    def __init__(self, region: str, status: int, reason: str) -> None:
        super().__init__(f"{region}: HTTP {status}: {reason}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    """What to look up in a region for one object."""

    topic: TopicName
    subscription: str | None = None


class RegionClient:
    """Talks to one region's brokers."""

    def __init__(
        self, region: Region, http: aiohttp.ClientSession, tokens: Tokens, authorities: Authorities | None = None
    ) -> None:
        self.region = region
        self._http = http
        self._tokens = tokens
        self._authorities = authorities or Authorities(None)

    async def describe(self, asks: Sequence[Ask]) -> list[RegionSeen]:
        """What the region holds, for each ask in order. The result may be shorter than ``asks``.

        :raises Refused: the region refused.
        :raises aiohttp.ClientError: the connection failed.
        :raises TimeoutError: no answer in time.
        :raises ValueError: the answer is not a broker's.
        """
        wanted = [
            {"topic": str(ask.topic), "subscriptions": [] if ask.subscription is None else [ask.subscription]}
            for ask in asks
        ]
        async with asyncio.timeout(CALL_SECONDS):
            text = await self._call("POST", "/meridian/v1/describe", {"topics": wanted})
        found = json.loads(text)
        try:
            if found["region"] != self.region.name:
                text = f"{self.region.url} is region {found['region']!s:.64}, not {self.region.name}"
                seen = RegionSeen(self.region.name, self.region.url, problem=text, reason="OtherRegion")
                return [seen] * len(asks)
            known = frozenset(found["clusters"])
            described = list(zip(asks, found["topics"], strict=False))
            if not described or any(one["topic"] != str(ask.topic) for ask, one in described):
                raise ValueError("it describes other topics than those asked for")
            return [seen_of(self.region, ask, one, known) for ask, one in described]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a part of it is missing: {error!r}") from error

    async def synchronization(self) -> RegionSeen:
        """How the region synchronizes metadata.

        :raises Refused: the region refused.
        :raises aiohttp.ClientError: the connection failed.
        :raises TimeoutError: no answer in time.
        :raises ValueError: the answer is not a broker's.
        """
        name, url = self.region.name, self.region.url
        async with asyncio.timeout(CALL_SECONDS):
            status = await self._get("/meridian/v1/metadata/status")
            if status is None:
                text = "its version cannot synchronize metadata: upgrade it"
                return RegionSeen(name, url, problem=text, reason="NotSupported")
            chosen = await self._get(f"{_SETTINGS}/values")
            conflicts = await self._get(f"{_CONFLICTS}?latest={CONFLICTS_SHOWN}") if status.get("conflicts") else None
        try:
            if status["region"] != name:
                text = f"{url} is region {status['region']!s:.64}, not {name}"
                return RegionSeen(name, url, problem=text, reason="OtherRegion")
            return RegionSeen(name, url, sync=synchronization(status, chosen or {}, conflicts or {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a part of it is missing: {error!r}") from error

    async def probe(self) -> str:
        """Why the region cannot be reached; empty: it can."""
        url = self.region.url
        try:
            async with asyncio.timeout(PROBE_SECONDS), self._http.get(f"{url}{_PROBE}", ssl=self._tls()) as response:
                await response.read()
                return ""
        except TimeoutError:
            return f"no answer from {url} within {PROBE_SECONDS:.0f} s"
        except aiohttp.ClientConnectorCertificateError as error:
            return _distrust(url, error.certificate_error)
        except BadAuthority as error:
            return str(error)
        except (aiohttp.ClientError, OSError) as error:
            return f"no connection to {url} ({type(error).__name__})"

    async def apply(self, change: changes.Change) -> None:
        """Make one change; its timeout begins now.

        :raises Refused: the region refused. A change that is already in effect is not refused.
        :raises aiohttp.ClientError: the connection failed.
        :raises TimeoutError: no answer in time.
        """
        path = _topic_path(change.topic)
        async with asyncio.timeout(CALL_SECONDS):
            match change:
                case changes.CreateNamespace(regions=regions):
                    tenant, namespace = change.topic.tenant, change.topic.namespace
                    await self._call("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": regions}, allow=(409,))
                    here = {"replication_clusters": [self.region.name]}
                    await self._call("PUT", f"/admin/v2/namespaces/{tenant}/{namespace}", here, allow=(409,))
                case changes.CreateTopic(partitions=0):
                    await self._call("PUT", path, allow=(409,))
                case changes.CreateTopic(partitions=partitions):
                    await self._call("PUT", f"{path}/partitions", partitions, allow=(409,))
                case changes.FollowPartitions(source=source, partitions=partitions):
                    await self._call("POST", f"{_topic_path(TopicName.parse(source))}/partitions", partitions)
                case changes.GrowTopic(partitions=partitions):
                    await self._call("POST", f"{path}/partitions", partitions)
                case changes.SetPolicy(policy="backlogQuota", value=quotas):
                    await self._set_quotas(path, quotas)
                case changes.SetPolicy(policy=geo_topic.SUBSCRIPTION_SYNC as policy, value=value):
                    await self._call("POST", f"{path}/{policy}?region={_quoted(self.region.name)}", value)
                case changes.SetPolicy(policy=policy, value=value):
                    await self._call("POST", f"{path}/{policy}", value)
                case changes.RemovePolicy(policy="backlogQuota"):
                    await self._set_quotas(path, {})
                case changes.RemovePolicy(policy=geo_topic.SUBSCRIPTION_SYNC as policy):
                    await self._call("DELETE", f"{path}/{policy}?region={_quoted(self.region.name)}")
                case changes.RemovePolicy(policy=policy):
                    await self._call("DELETE", f"{path}/{policy}")
                case changes.CreateShadow(source=source, holds=holds, reset_behind=behind):
                    shadow = {"topic": str(change.topic), "holdSourceLedgers": holds, "autoResetBacklogEntries": behind}
                    await self._create_shadow(change.topic, source, shadow)
                case changes.AutoResetBacklog(entries=entries):
                    await self._call("PUT", f"{path}/properties", {"meridian.autoResetBacklogEntries": str(entries)})
                case changes.HoldSourceLedgers(holds=holds):
                    await self._call("PUT", f"{path}/properties", {"meridian.holdSourceLedgers": str(holds).lower()})
                case changes.Unlink(region=region):
                    await self._call("POST", f"{path}/replication", [region])
                case changes.AddSchema(type=kind, definition=definition):
                    await self._call(
                        "POST",
                        f"/admin/v2/schemas/{change.topic.tenant}/{change.topic.namespace}/{_quoted(change.topic.local)}/schema",
                        {"type": kind, "schema": definition, "properties": {}},
                    )
                case changes.DeleteTopic(partitioned=partitioned):
                    await self._call("DELETE", f"{path}/partitions" if partitioned else path, allow=(404,))
                case changes.CreateSubscription(subscription=subscription, earliest=earliest):
                    end = -1 if earliest else (1 << 63) - 1
                    await self._call(
                        "PUT",
                        f"{path}/subscription/{_quoted(subscription)}?replicated=true",
                        {"ledgerId": end, "entryId": end, "partitionIndex": -1},
                        allow=(409,),
                    )
                case changes.ReplicateSubscription(subscription=subscription):
                    await self._call(
                        "POST", f"{path}/subscription/{_quoted(subscription)}/replicatedSubscriptionStatus", True
                    )
                case changes.SetDispatchScope(subscription=subscription, scope=scope, witness=witness):
                    own = _own_path(change.topic, subscription)
                    wanted = {"dispatchScope": scope} | ({} if witness is None else {"witness": witness})
                    await self._call("POST", f"{own}/scope", wanted)
                case changes.GoOnWithout(partitions=partitions, lost=lost):
                    for name in change.topic.parts(partitions):
                        own = f"/meridian/v1/topics/persistent/{name.tenant}/{name.namespace}/{_quoted(name.local)}"
                        await self._call("POST", f"{own}/snapshots/without", {"regions": lost})
                case changes.DeleteSubscription(subscription=subscription, force=force):
                    query = "?force=true" if force else ""
                    await self._call("DELETE", f"{path}/subscription/{_quoted(subscription)}{query}", allow=(404,))
                case changes.SetSetting(key=key, value=value):
                    await self._call("POST", f"{_SETTINGS}/{key}/{_quoted(value)}")
                case changes.RemoveSetting(key=key):
                    await self._call("DELETE", f"{_SETTINGS}/{key}", allow=(404,))
                case _:
                    raise TypeError(f"no call makes {change!r}")

    async def _create_shadow(self, topic: TopicName, source: str, wanted: Mapping[str, Any]) -> None:
        try:
            await self._call("POST", f"{_topic_path(TopicName.parse(source))}/shadowTopics", wanted)
        except Refused as error:
            found = await self.describe([Ask(topic)]) if error.status == 409 else []
            if not any(one.topic and one.topic.shadow and one.topic.shadow.source == source for one in found):
                raise  # another topic of that name is there, being made or being deleted

    async def _set_quotas(self, path: str, quotas: Mapping[str, Any]) -> None:
        for kind, quota in quotas.items():
            await self._call("POST", f"{path}/{QUOTA}?backlogQuotaType={kind}", quota)
        for kind in _quotas(await self._get(f"{path}/backlogQuotaMap")).keys() - quotas.keys():
            await self._call("DELETE", f"{path}/{QUOTA}?backlogQuotaType={kind}")

    async def _get(self, path: str) -> Any:
        """The answer's JSON; None if there is no such resource."""
        status, text = await self._send("GET", path)
        if status in (204, 404):
            return None
        if status != 200:
            raise Refused(self.region.name, status, _reason(text))
        return json.loads(text) if text else None

    async def _call(self, method: str, path: str, body: Any = None, *, allow: tuple[int, ...] = ()) -> str:
        status, text = await self._send(method, path, None if body is None else json.dumps(body))
        if status >= 300 and status not in allow:
            raise Refused(self.region.name, status, _reason(text))
        return text

    async def _send(self, method: str, path: str, data: str | None = None) -> tuple[int, str]:
        """The status and text of the answer of whichever broker serves what is asked about.

        A broker that does not serve it names the one that does. The HTTP client would go there without the token, since
        it is another host.
        """
        headers, tls = {**self._headers(), "Content-Type": "application/json"}, self._tls()
        url = URL(self.region.url + path, encoded=True)
        for _ in range(REDIRECTS_MAX):
            async with self._http.request(
                method, url, data=data, headers=headers, ssl=tls, allow_redirects=False
            ) as response:
                if response.status != REDIRECT or "Location" not in response.headers:
                    return response.status, await response.text()
                url = url.join(URL(response.headers["Location"], encoded=True))
        raise Refused(self.region.name, REDIRECT, f"{REDIRECTS_MAX} redirects: ownership is changing")

    def _tls(self) -> ssl.SSLContext | bool:
        """:raises BadAuthority: the region's authorities cannot be used."""
        return self._authorities.of(self.region.name) or True

    def _headers(self) -> dict[str, str]:
        """:raises Refused: the region's token cannot be read."""
        try:
            token = self._tokens.of(self.region.name)
        except OSError as error:
            raise Refused(self.region.name, 401, f"the operator cannot read its token: {error}") from error
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _own_path(topic: TopicName, subscription: str) -> str:
    """Path of Meridian's own API for a subscription."""
    path = f"/meridian/v1/subscriptions/persistent/{topic.tenant}/{topic.namespace}/{_quoted(topic.local)}"
    return f"{path}/{_quoted(subscription)}"


def _topic_path(topic: TopicName) -> str:
    return f"/admin/v2/persistent/{topic.tenant}/{topic.namespace}/{_quoted(topic.local)}"


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _quotas(found: Any) -> dict[str, Any]:
    return {
        kind: {"limitSize": one.get("limitSize", -1), "limitTime": one.get("limitTime", -1), "policy": one["policy"]}
        for kind, one in (found or {}).items()
    }


def seen_of(region: Region, ask: Ask, found: Mapping[str, Any], known: frozenset[str]) -> RegionSeen:
    """Parse a region's description of a topic.

    :param known: clusters that the region knows.
    :raises KeyError: a field is missing.
    :raises TypeError: a field has the wrong type.
    """
    name, url = region.name, region.url
    if "problem" in found:
        return RegionSeen(name, url, problem=str(found["problem"]), reason="TopicUnavailable")
    if not found["exists"]:
        return RegionSeen(name, url, namespace_exists=bool(found["namespace"]), known_regions=known)
    subscription = None
    if ask.subscription is not None and (place := found["subscriptions"][ask.subscription]) is not None:
        subscription = _subscription(place)
    policies = {**found["policies"], QUOTA: _quotas(found["policies"].get(QUOTA))}
    snapshots = found.get("snapshots", {})  # older brokers do not send it
    topic = TopicSeen(
        partitions=int(found["partitions"]),
        policies={policy: policies[policy] for policy in POLICIES if policies.get(policy) not in _ABSENT},
        schema=found["schema"],
        unfilled=_unfilled(found["fill"]),
        links=tuple(_link(remote, one) for remote, one in sorted(found["replication"].items())),
        shadow=_shadow(found.get("shadow")),
        takes_snapshots=bool(snapshots.get("takes")),
        without=frozenset(snapshots.get("without", ())),
    )
    return RegionSeen(name, url, known_regions=known, topic=topic, subscription=subscription)


def _shadow(found: Mapping[str, Any] | None) -> ShadowSeen | None:
    if found is None:  # also what a broker without shadows sends
        return None
    return ShadowSeen(
        source=str(found["source"]),
        connected=bool(found["connected"]),
        holds=bool(found["holdsSourceLedgers"]),
        backlog=int(found["backlog"]),
        gap=int(found["gapEntries"]),
        reset_behind=int(found.get("autoResetBacklogEntries", 0)),  # older brokers do not send it
        resets=int(found.get("autoResets", 0)),
    )


def _subscription(found: Mapping[str, Any]) -> SubscriptionSeen:
    return SubscriptionSeen(
        replicated=bool(found["replicated"]),
        mark_delete=str(found["markDelete"]),
        holes=int(found["holes"]),
        backlog=int(found["backlog"]),
        consumers=int(found["consumers"]),
        synced=bool(found["synced"]),
        reasons=tuple(f"{region}: {reason}" for region, reason in sorted(found["behind"].items())),
        scopes=frozenset(found["scopes"]),
        witnesses=frozenset(found["witnesses"]),
        scope_problem=str(found["scopeProblem"]),
    )


def _unfilled(fill: Mapping[str, Any]) -> str:
    if fill["ready"]:
        return ""
    return f"{fill['reason'] or 'no reason given'} ({int(fill['missing'])} entries known to be missing)"


def _link(region: str, stats: Mapping[str, Any]) -> Link:
    return Link(
        region=region,
        connected=bool(stats["connected"]),
        backlog=int(stats["backlog"]),
        lag_seconds=int(stats["delaySeconds"]),
    )


def _distrust(url: str, error: Exception) -> str:
    why = getattr(error, "verify_message", "") or error
    return (
        f"the certificate of {url} is not trusted ({why}), so nothing was sent: it must be signed by an authority in "
        "the region's caSecret, or else in tls.caSecret, of the operator's chart, and name that host"
    )


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])[:1000]
    except (ValueError, KeyError, TypeError):
        return text[:1000] or "no reason given"
