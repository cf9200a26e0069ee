# SPDX-License-Identifier: Apache-2.0
"""A broker with an older version of the peer protocol among newer ones.

There is only one core here, the newest. It speaks like an older one if each end believes that the other has the older
version; so each HELLO carries the version of the older end. Nothing that its version lacks may reach the older one.
"""

from __future__ import annotations

from dataclasses import replace

from meridian_broker.replication.leases.messages import LeaseRenewal, LeaseRenewed
from meridian_broker.replication.progress.messages import (
    PARTS_VERSION,
    RENEWAL_VERSION,
    SUMMARY_VERSION,
    Digest,
    Fetch,
    Hello,
    PeerMessage,
    State,
)


def spoken(message: PeerMessage, version: int) -> PeerMessage:
    """The message as a broker of this version sends or receives it."""
    if isinstance(message, Hello) and message.version > version:
        return replace(message, version=version)
    return message


def beyond(message: PeerMessage, version: int) -> str:
    """What a broker of this version does not know in the message; empty: it knows everything."""
    match message:
        case Digest():
            if message.summary is not None and version < SUMMARY_VERSION:
                return "a summary"
            if (message.differing or message.ends is not None) and version < PARTS_VERSION:
                return "parts of buckets or ends of origins"
        case Fetch():
            if message.buckets and version < SUMMARY_VERSION:
                return "numbers of buckets"
            if message.parts and version < PARTS_VERSION:
                return "numbers of parts"
        case State():
            if message.ends is not None and version < PARTS_VERSION:
                return "ends of origins"
        case LeaseRenewal() | LeaseRenewed():
            if version < RENEWAL_VERSION:
                return "renewals without names"
    return ""
