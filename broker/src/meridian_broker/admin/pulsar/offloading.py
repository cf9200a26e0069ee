# SPDX-License-Identifier: Apache-2.0
"""Offloading of ledgers to an object store: a topic's, on request, and ``offloadPolicies`` as a whole.

Pulsar's policy also names the store. Here the broker's settings alone do: whoever may change policies must not make
brokers send messages to, or request them from, a place of their choice. So a policy that names another one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, answer, body, done, flag, id_json, message_id, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar.policies import OfNamespace, OfTopic, Place, applied
from meridian_broker.admin.pulsar.topics import opened_one
from meridian_broker.metadata import policy_table as policies
from meridian_broker.metadata.errors import Invalid
from meridian_broker.topics.service.offloading import OffloadRounds, OffloadStatus

FIELDS: Final = {
    "managedLedgerOffloadThresholdInBytes": policies.OFFLOAD_THRESHOLD,
    "managedLedgerOffloadThresholdInSeconds": policies.OFFLOAD_THRESHOLD_SECONDS,
    "managedLedgerOffloadDeletionLagInMillis": policies.OFFLOAD_LAG,
}
"""What a policy can set, by Pulsar's names."""
PLACE: Final = {
    "managedLedgerOffloadDriver": "managedLedgerOffloadDriver",
    "s3ManagedLedgerOffloadBucket": "s3ManagedLedgerOffloadBucket",
    "s3ManagedLedgerOffloadRegion": "s3ManagedLedgerOffloadRegion",
    "s3ManagedLedgerOffloadServiceEndpoint": "s3ManagedLedgerOffloadServiceEndpoint",
    "managedLedgerOffloadBucket": "s3ManagedLedgerOffloadBucket",
    "managedLedgerOffloadRegion": "s3ManagedLedgerOffloadRegion",
    "managedLedgerOffloadServiceEndpoint": "s3ManagedLedgerOffloadServiceEndpoint",
}
"""Field of a policy -> the setting that decides it."""
SECRETS: Final = (
    "s3ManagedLedgerOffloadCredentialId",
    "s3ManagedLedgerOffloadCredentialSecret",
    "s3ManagedLedgerOffloadRole",
    "gcsManagedLedgerOffloadServiceAccountKeyFile",
)
DRIVERS: Final = frozenset(("aws-s3", "s3"))
"""Two names of the same driver."""


def _rounds(request: web.Request) -> OffloadRounds:
    """:raises Refused: there is no object store."""
    rounds = state(request).offload
    if rounds is None:
        raise Refused(412, "this broker has no object store: set managedLedgerOffloadDriver and the bucket")
    return rounds


async def start(request: web.Request) -> web.Response:
    """Copy every ledger before a message to the object store, in the background; the body is the message's id."""
    upto = message_id(await body(request))
    rounds = _rounds(request)
    topic = await opened_one(request)
    topic.check_own_log("offload")
    rounds.start(topic, upto)
    return done()


async def status(request: web.Request) -> web.Response:
    """Status of the last offload that was requested since the broker opened the topic."""
    topic, rounds = await opened_one(request), state(request).offload
    shown = OffloadStatus() if rounds is None else rounds.status(topic.name)
    first = shown.first_not_copied
    return answer(
        {
            "status": shown.status.value,
            "lastError": shown.last_error,
            "firstUnoffloadedMessage": None if first is None else id_json(first, topic.partition),
        }
    )


def offloaded_json(admin: AdminState, topic: str, ledgers: Mapping[int, int]) -> dict[str, Any]:
    """A topic's statistics of offloading. :param ledgers: the bytes of each ledger."""
    rounds = admin.offload
    if rounds is None:
        return {"offloadedStorageSize": 0}
    said, is_copied = rounds.status(topic), rounds.offloading.is_copied
    return {
        "offloadedStorageSize": sum(size for ledger, size in ledgers.items() if is_copied(ledger)),
        "lastOffloadLedgerId": max(said.last_ledger, 0),
        "lastOffloadSuccessTimeStamp": said.succeeded_ms,
        "lastOffloadFailureTimeStamp": said.failed_ms,
    }


# -- policies --------------------------------------------------------------------------------------------------------


def _policy_json(request: web.Request, own: Mapping[str, Any]) -> dict[str, Any]:
    settings = state(request).settings.in_force()
    place = {name: settings[key] for name, key in PLACE.items() if name == key and settings[key]}
    return {**place, **{name: own.get(policy) for name, policy in FIELDS.items()}}


def _reading(place: Place) -> Handler:
    async def read(request: web.Request) -> web.Response:
        """When ledgers are copied to the object store, and leave their original storage; empty when not set here."""
        own = await place.own(request)
        if place is OfTopic and flag(request, "applied"):
            own = {policy: applied(request, policy) for policy in FIELDS.values()}
        return answer(_policy_json(request, own)) if own.keys() & set(FIELDS.values()) else done()

    return read


def _setting(place: Place) -> Handler:
    async def set_it(request: web.Request) -> web.Response:
        """Set when ledgers are copied to the object store, and leave their original storage."""
        given = await body(request)
        if not isinstance(given, Mapping):
            raise Invalid("offload policies: expected an object")
        _check_place(state(request), given)
        await place.set_all(request, {policy: given.get(name) for name, policy in FIELDS.items()})
        return done()

    return set_it


def _removing(place: Place) -> Handler:
    async def remove(request: web.Request) -> web.Response:
        """Remove the settings for copying ledgers to the object store."""
        await place.set_all(request, dict.fromkeys(FIELDS.values()))
        return done()

    return remove


def _check_place(admin: AdminState, given: Mapping[str, Any]) -> None:
    """:raises Refused: the policy names another object store than the settings, or brings credentials."""
    if any(given.get(name) for name in SECRETS):
        raise Refused(412, "credentials for the object store belong in the environment of the brokers, not in a policy")
    for name, key in PLACE.items():
        wanted, have = given.get(name), admin.settings.in_force()[key]
        is_driver = key == "managedLedgerOffloadDriver"
        if is_driver and {str(wanted).lower(), have.lower()} <= DRIVERS:
            continue
        if wanted and wanted != have:
            raise Refused(412, f"{name} is {str(wanted)[:100]!r}, but this broker's settings have {have!r}")


def handlers() -> list[tuple[str, str, str, Handler, bool]]:
    """As `policies.handlers`."""
    found: list[tuple[str, str, str, Handler, bool]] = []
    for level, place, removal in (
        ("namespace", OfNamespace, "removeOffloadPolicies"),
        ("topic", OfTopic, "offloadPolicies"),
    ):
        found.append((level, "GET", "offloadPolicies", _reading(place), False))
        found.append((level, "POST", "offloadPolicies", _setting(place), False))
        found.append((level, "DELETE", removal, _removing(place), False))
    return found
