# SPDX-License-Identifier: Apache-2.0
"""The operator's settings: only what is listed is trusted."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_operator.api.settings import Settings, parsed
from pydantic import ValidationError

ORDERS = "persistent://acme/orders/created"


def test_nothing_is_allowed_but_what_is_listed() -> None:
    assert not Settings().allows("default", ORDERS)
    listed = Settings.model_validate(
        {"tenantsByNamespace": {"shop": ["acme"], "platform": ["*"], "other": ["umbrella"]}}
    )
    assert [listed.allows(one, ORDERS) for one in ("shop", "platform", "other", "")] == [True, True, False, False]
    assert not listed.allows("shop", "persistent://acme2/orders/created")
    assert not listed.allows("shop", "acme")


def test_two_entries_for_one_region_are_both_refused() -> None:
    east, west = '"us-east": {"url": "http://a:8080"}', '"us-east": {"url": "http://b:8080"}'
    assert parsed(f'{{"regions": {{{east}}}}}').regions["us-east"].url == "http://a:8080"
    with pytest.raises(ValueError, match="us-east is listed twice"):
        parsed(f'{{"regions": {{{east}, {west}}}}}')


@pytest.mark.parametrize(
    "given",
    [
        {"regions": {"us-east": {"url": "http://broker:8080"}, "us-west": {"url": "http://broker:8080"}}},
        {"regions": {"us-east": {"url": "http://broker:8080/admin"}}},
        {"regions": {"us-east": {"url": "http://user:password@broker:8080"}}},
        {"regions": {"us-east": {"url": "ftp://broker"}}},
        {"regions": {"../default": {"url": "http://broker:8080"}}},
        {"regions": {"us-east": {}}},
        {"regions": {"default": {"url": "http://broker:8080"}}},
        {"tenants": {}},
    ],
)
def test_invalid_settings_are_refused_with_the_reason(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(given)
