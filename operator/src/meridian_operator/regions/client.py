# SPDX-License-Identifier: Apache-2.0
"""One region's admin REST: look, and apply changes.

Every call has a bound in time. A region that does not answer is an observation, not an error: the others go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from meridian_operator.plan import changes
from meridian_operator.plan.observed import Link, RegionSeen, SubscriptionSeen, TopicName, TopicSeen
from meridian_operator.regions.directory import Region, Tokens

CALL_SECONDS: Final = 10.0
POLICIES: Final = ("replication", "retention", "messageTTL", "deduplicationEnabled")
"""Topic-level policies that are read as they are written. Quotas are read by another path."""
QUOTA: Final = "backlogQuota"
_ABSENT: Final[tuple[Any, ...]] = (None, {}, [], "")


class Refused(Exception):
    """A region answered a change with a refusal. The message names the region and what it said."""

    def __init__(self, region: str, status: int, reason: str) -> None:
        super().__init__(f"{region}: HTTP {status}: {reason}")
        self.status = status


class RegionClient:
    """Speaks with one region's brokers."""

    def __init__(self, region: Region, http: aiohttp.ClientSession, tokens: Tokens) -> None:
        self.region = region
        self._http = http
        self._tokens = tokens

    async def see(self, topic: TopicName, subscription: str | None = None) -> RegionSeen:
        """What the region holds of a topic, and of a subscription on it."""
        name, url = self.region.name, self.region.url
        try:
            async with asyncio.timeout(CALL_SECONDS):
                known = frozenset(await self._get("/admin/v2/clusters") or ())
                if await self._get(f"/admin/v2/namespaces/{topic.tenant}/{topic.namespace}") is None:
                    return RegionSeen(name, url, namespace_exists=False, known_regions=known)
                seen = await self._topic(topic)
                place = None
                if subscription is not None and seen is not None:
                    place = await self._subscription(topic, subscription)
                return RegionSeen(name, url, known_regions=known, topic=seen, subscription=place)
        except TimeoutError:
            return RegionSeen(name, url, problem=f"no answer from {url} within {CALL_SECONDS:.0f} s")
        except Refused as error:
            return RegionSeen(name, url, problem=str(error))
        except (aiohttp.ClientError, OSError) as error:
            return RegionSeen(name, url, problem=f"no connection to {url} ({type(error).__name__})")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return RegionSeen(name, url, problem=f"{url} answers with what is no answer of a broker: {error!r}"[:500])

    async def apply(self, change: changes.Change) -> None:
        """Make one change.

        :raises Refused: the region said no. What is already as wanted is no refusal.
        :raises aiohttp.ClientError: no connection, or it broke.
        :raises TimeoutError: no answer.
        """
        path = _topic_path(change.topic)
        async with asyncio.timeout(CALL_SECONDS):
            match change:
                case changes.CreateTopic(partitions=0):
                    await self._call("PUT", path, allow=(409,))
                case changes.CreateTopic(partitions=partitions):
                    await self._call("PUT", f"{path}/partitions", partitions, allow=(409,))
                case changes.GrowTopic(partitions=partitions):
                    await self._call("POST", f"{path}/partitions", partitions)
                case changes.SetPolicy(policy="backlogQuota", value=quotas):
                    await self._set_quotas(path, quotas)
                case changes.SetPolicy(policy=policy, value=value):
                    await self._call("POST", f"{path}/{policy}", value)
                case changes.RemovePolicy(policy="backlogQuota"):
                    await self._set_quotas(path, {})
                case changes.RemovePolicy(policy=policy):
                    await self._call("DELETE", f"{path}/{policy}")
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
                case changes.DeleteSubscription(subscription=subscription, force=force):
                    query = "?force=true" if force else ""
                    await self._call("DELETE", f"{path}/subscription/{_quoted(subscription)}{query}", allow=(404,))
                case _:
                    raise TypeError(f"no call makes {change!r}")

    async def _topic(self, topic: TopicName) -> TopicSeen | None:
        path = _topic_path(topic)
        found = await self._get(f"{path}/partitions")
        partitions = int((found or {}).get("partitions", 0))
        stats = await self._get(f"{path}/partitioned-stats?perPartition=false" if partitions else f"{path}/stats")
        if stats is None:
            return None
        policies = {policy: await self._get(f"{path}/{policy}") for policy in POLICIES}
        if isinstance(policies["replication"], list):
            policies["replication"] = sorted(policies["replication"])
        policies[QUOTA] = _quotas(await self._get(f"{path}/backlogQuotaMap"))
        schema = await self._get(f"/admin/v2/schemas/{topic.tenant}/{topic.namespace}/{_quoted(topic.local)}/schema")
        return TopicSeen(
            partitions=partitions,
            policies={policy: value for policy, value in policies.items() if value not in _ABSENT},
            schema=schema,
            unfilled=_unfilled(stats.get("fill", {})),
            links=tuple(_link(name, one) for name, one in sorted(stats.get("replication", {}).items())),
        )

    async def _subscription(self, topic: TopicName, subscription: str) -> SubscriptionSeen | None:
        found = await self._get(f"{_own_path(topic, subscription)}/status")
        if found is None:
            return None
        parts = list(found["partitions"].values()) if "partitions" in found else [found]
        return SubscriptionSeen(
            replicated=all(part["replicated"] for part in parts),
            mark_delete=parts[0]["mark_delete"] if len(parts) == 1 else "",
            holes=sum(part["holes"] for part in parts),
            backlog=sum(part["backlog"] for part in parts),
            consumers=sum(part["consumers"] for part in parts),
            synced=all(part["synced"] for part in parts),
            reasons=tuple(
                sorted(
                    {
                        f"{peer['region']}: {peer['reason']}"
                        for part in parts
                        for peer in part["peers"]
                        if peer["reason"]
                    }
                )
            ),
            scopes=frozenset(part.get("dispatch_scope", "local") for part in parts),
            witnesses=frozenset(part.get("witness", "") for part in parts),
            scope_problem=next((part["scope_reason"] for part in parts if part.get("scope_reason")), ""),
        )

    async def _set_quotas(self, path: str, quotas: Mapping[str, Any]) -> None:
        for kind, quota in quotas.items():
            await self._call("POST", f"{path}/{QUOTA}?backlogQuotaType={kind}", quota)
        for kind in _quotas(await self._get(f"{path}/backlogQuotaMap")).keys() - quotas.keys():
            await self._call("DELETE", f"{path}/{QUOTA}?backlogQuotaType={kind}")

    async def _get(self, path: str) -> Any:
        """The answer's JSON; None when there is no such thing."""
        async with self._http.get(self.region.url + path, headers=self._headers()) as response:
            if response.status in (204, 404):
                return None
            text = await response.text()
            if response.status != 200:
                raise Refused(self.region.name, response.status, _reason(text))
            return json.loads(text) if text else None

    async def _call(self, method: str, path: str, body: Any = None, *, allow: tuple[int, ...] = ()) -> None:
        data = None if body is None else json.dumps(body)
        headers = {**self._headers(), "Content-Type": "application/json"}
        async with self._http.request(method, self.region.url + path, data=data, headers=headers) as response:
            if response.status >= 300 and response.status not in allow:
                raise Refused(self.region.name, response.status, _reason(await response.text()))

    def _headers(self) -> dict[str, str]:
        token = self._tokens.of(self.region.name)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _own_path(topic: TopicName, subscription: str) -> str:
    """Where Meridian's own requests about a subscription go."""
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


def _unfilled(fill: Mapping[str, Any]) -> str:
    if fill.get("ready", True):
        return ""
    return f"{fill.get('reason') or 'no reason given'} ({int(fill.get('missing', 0))} entries known to be missing)"


def _link(region: str, stats: Mapping[str, Any]) -> Link:
    return Link(
        region=region,
        connected=bool(stats.get("connected", False)),
        backlog=int(stats.get("replicationBacklog", 0)),
        lag_seconds=int(stats.get("replicationDelayInSeconds", 0)),
    )


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])[:1000]
    except (ValueError, KeyError, TypeError):
        return text[:1000] or "no reason given"
