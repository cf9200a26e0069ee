# SPDX-License-Identifier: Apache-2.0
"""What a link begins with <-> commands of the wire: greetings, and who owns what in a region of several brokers."""

from __future__ import annotations

from meridian_broker.bounds.regions import OWNERS_TEXT
from meridian_broker.ownership.bundles import Bundles
from meridian_broker.replication.progress.messages import Hello, NamespaceOwners, Owners, RemoteBroker
from meridian_broker.wire.proto import peer_pb2 as pb


def put_hello(message: Hello) -> pb.ProgressHello:
    out = pb.ProgressHello(
        region=message.region,
        protocol_version=message.version,
        next_delta=message.next_delta,
        answer=message.answer,
    )
    if message.leases:
        out.leases = True
    if message.broker:
        out.broker = message.broker
    if message.asks_owners:
        out.asks_owners = True
    return out


def read_hello(message: pb.ProgressHello) -> Hello:
    return Hello(
        message.protocol_version,
        message.region,
        message.next_delta,
        message.answer,
        message.leases,
        message.broker,
        message.asks_owners,
    )


def put_owners(message: Owners) -> pb.Owners:
    out = pb.Owners(first=message.is_first, last=message.is_last)
    numbers = {"": 0}
    for number, one in enumerate(message.brokers, 1):
        out.brokers.add(broker=one.broker, service_url=one.service_url, service_url_tls=one.service_url_tls)
        numbers[one.broker] = number
    for namespace, borders, owners in message.namespaces:
        out.namespaces.add(name=namespace, borders=borders, owners=[numbers.get(owner, 0) for owner in owners])
    return out


def read_owners(message: pb.Owners) -> Owners:
    """:raises ValueError: a name, an address or the borders of a namespace are not valid.
    :raises IndexError: an owner is not listed.
    """
    for text in (text for one in message.brokers for text in (one.broker, one.service_url, one.service_url_tls)):
        _check(text)
    brokers = tuple(RemoteBroker(one.broker, one.service_url, one.service_url_tls) for one in message.brokers)
    ids = ("", *(one.broker for one in brokers))
    if len(set(ids)) < len(ids) or any("/" in one for one in ids):
        raise ValueError("brokers need names of their own, without a slash")
    namespaces = []
    for one in message.namespaces:
        _check(one.name)
        borders, owners = tuple(one.borders), tuple(ids[number] for number in one.owners)
        if borders:
            bundles = len(Bundles.checked(one.name, borders).borders) - 1
            if len(owners) != bundles:
                raise ValueError(f"{len(owners)} owners of the {bundles} bundles of {one.name}")
        namespaces.append(NamespaceOwners(one.name, borders, owners))
    return Owners(brokers, tuple(namespaces), message.first, message.last)


def _check(text: str) -> None:
    if len(text) > OWNERS_TEXT:
        raise ValueError(f"a name or address of {len(text)} characters; the limit is {OWNERS_TEXT}")
