# SPDX-License-Identifier: Apache-2.0
"""Why this region and another one do not know the same acknowledgements: all of it must end before consumers return."""

from __future__ import annotations

from itertools import islice
from typing import Final

from meridian_broker.replication.progress.context import ExchangeContext
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.peer import Peer

SHOWN: Final = 100
"""Topics and subscriptions that are named, of each kind of reason."""


def apart_from(context: ExchangeContext, peer: Peer) -> dict[str, str]:
    """A reason for each topic, for each subscription as ``TOPIC NAME``, or for everything, under the empty name. No
    reasons: the peer's consumers can continue here. A link that is down is not reported here."""
    found: dict[str, str] = {}
    if peer.is_divided:
        if not context.routes.is_complete(peer.region):
            found[""] = f"{Why.CATCHING_UP}: finding out which broker of {peer.region} owns which topic"
        return found
    if peer.incompatible:
        found[""] = f"{Why.OTHER_VERSION}: {peer.incompatible}"
    elif peer.up and not peer.catching.is_over(context.now_ms):
        found[""] = f"{Why.CATCHING_UP}: comparing what {peer.region} acknowledged"
    for topic in list(islice(peer.waiting, SHOWN)):
        if why := context.held(peer, topic):
            found[topic] = f"{peer.waiting[topic].trouble.why}: {why}"
    for (topic, name), trouble in islice(peer.troubles.items(), SHOWN):
        if topic not in found:
            found[f"{topic} {name}"] = f"{trouble.why}: {trouble.text}"
    missed = (key for key, behind in peer.lag.behind() if behind.missed_since_ms is not None)
    for topic, name in islice(missed if peer.up else (), SHOWN):
        if topic not in found:
            found.setdefault(f"{topic} {name}", f"{Why.CATCHING_UP}: {peer.region} lacks what it missed")
    return found
