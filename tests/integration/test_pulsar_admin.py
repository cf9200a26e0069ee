# SPDX-License-Identifier: Apache-2.0
"""What an Apache Pulsar region is asked about its deduplication."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.gateway.pulsar_admin import PulsarAdmin
from meridian_broker.gateway.remote_admin import RemoteAdminFailed
from support.brokers.stand_in_admin import serving

TOPIC = "persistent://shop/orders/new"
OF_TOPIC = "GET /admin/v2/persistent/shop/orders/new/deduplicationEnabled?applied=true"
OF_NAMESPACE = "GET /admin/v2/namespaces/shop/orders/deduplication"


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({OF_TOPIC: (200, True)}, True),
        ({OF_TOPIC: (200, False), OF_NAMESPACE: (200, True)}, False),
        ({OF_TOPIC: (405, {}), OF_NAMESPACE: (200, True)}, True),
        ({OF_TOPIC: (405, {}), OF_NAMESPACE: (204, None)}, None),
        ({OF_TOPIC: (401, {}), OF_NAMESPACE: (401, {})}, None),
        ({OF_TOPIC: (200, "perhaps")}, None),
    ],
)
async def test_the_topics_setting_counts_or_else_its_namespaces(answers: dict[str, Any], found: bool | None) -> None:
    with serving() as there:
        there.answers = answers
        admin = PulsarAdmin(lambda _: ("", there.url), lambda: b"secret", None)
        assert await admin.drops_repeats("apache", TOPIC) is found
        assert there.tokens == {"Bearer secret"}


async def test_pulsars_own_system_topics_are_not_asked_about() -> None:
    """Pulsar never deduplicates them, whatever the policies say."""
    with serving() as there:
        admin = PulsarAdmin(lambda _: ("", there.url), None, None)
        assert await admin.drops_repeats("apache", "persistent://shop/orders/__change_events") is None
        assert not there.asked


async def test_an_unreachable_region_is_an_error() -> None:
    for place in None, ("pulsar://127.0.0.1:1", ""), ("", "http://127.0.0.1:1"):
        with pytest.raises(RemoteAdminFailed):
            await PulsarAdmin(lambda _, place=place: place, None, None).drops_repeats("apache", TOPIC)  # type: ignore[misc]
