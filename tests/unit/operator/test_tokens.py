# SPDX-License-Identifier: Apache-2.0
"""The operator's tokens: which is used, when it expires, and what is reported before that."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.world import World
from meridian_operator.plan.outcome import Plan, judge
from meridian_operator.process.metrics import Metrics
from meridian_operator.regions.directory import SOON_SECONDS, Tokens, expiry_of

NEW_YEAR = 1_767_225_600
"""2026-01-01T00:00:00Z."""


def token(claims: Any) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{middle}.signature\n"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


@pytest.mark.parametrize("until", [NEW_YEAR, NEW_YEAR + 0.9])
def test_a_token_says_when_it_expires(until: float, tmp_path: Path) -> None:
    (tmp_path / "east").write_text(token({"sub": "admin", "exp": until}))
    (tmp_path / "default").write_text(token({"sub": "admin"}))
    assert Tokens(tmp_path).expiries(["east", "west"]) == {"east": NEW_YEAR}


@pytest.mark.parametrize("other", ["", "opaque", "a.b.c", "a.%%%.c", "a.äö.c", token([]), token({"exp": "soon"})])
def test_other_values_have_no_expiry(other: str, tmp_path: Path) -> None:
    (tmp_path / "default").write_text(other)
    assert Tokens(tmp_path).expires("east") is None
    assert Tokens(None).expires("east") is None


@pytest.mark.parametrize("until", [-1, 1e300, float("inf"), True])
def test_an_invalid_expiry_is_ignored(until: float) -> None:
    assert expiry_of(token({"exp": until})) in (None, 1)


def world(directory: Path, wall: float, regions: Iterable[str] = ("east", "west")) -> World:
    listed = {name: {"url": f"http://{name}"} for name in regions}
    settings = Settings.model_validate({"regions": listed})
    outside = cast("Any", None)
    return World(outside, Tokens(directory), outside, outside, outside, settings, wall=lambda: wall)


def test_a_token_is_reported_once_when_it_expires_soon_and_again_when_it_has_expired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "meridian_operator")
    (tmp_path / "default").write_text(token({"sub": "admin"}))
    (tmp_path / "east").write_text(token({"exp": NEW_YEAR}))
    near = world(tmp_path, NEW_YEAR - SOON_SECONDS - 1)
    near.check_tokens()
    assert not said(caplog)
    near.wall = lambda: NEW_YEAR - SOON_SECONDS
    near.check_tokens()
    (warning,) = said(caplog)
    assert "the token for region east expires at 2026-01-01T00:00:00Z" in warning
    near.check_tokens()
    assert not said(caplog)
    near.wall = lambda: NEW_YEAR
    near.check_tokens()
    (warning,) = said(caplog)
    assert "region east expired at" in warning
    (tmp_path / "east").write_text(token({"exp": NEW_YEAR + 90 * 86_400}))
    near.check_tokens()
    assert not said(caplog), "it was replaced"


def test_a_short_lived_token_is_reported_in_the_last_quarter_of_its_lifetime(tmp_path: Path) -> None:
    """Its region renews it at half: so the region needs attention then."""
    tokens = Tokens(tmp_path, {"east": "us-east/meridian-token-issuer"})
    tokens.issue("east", token({"exp": NEW_YEAR, "meridian_lifetime": 86_400}).strip())
    assert not tokens.warning("east", NEW_YEAR - 6 * 3600 - 1)
    told = tokens.warning("east", NEW_YEAR - 6 * 3600)
    assert "region east expires at 2026-01-01T00:00:00Z" in told
    assert "`kubectl -n us-east logs deployment/meridian-token-issuer` says why not" in told
    for lifetime in (90 * 86_400, -1, "long", None):
        (tmp_path / "west").write_text(token({"exp": NEW_YEAR, "meridian_lifetime": lifetime}))
        assert not tokens.warning("west", NEW_YEAR - SOON_SECONDS - 1)
        assert "create a new one" in tokens.warning("west", NEW_YEAR - SOON_SECONDS)


def test_objects_of_a_region_whose_token_expires_are_degraded_and_stay_ready(tmp_path: Path) -> None:
    (tmp_path / "default").write_text(token({"sub": "admin"}))
    (tmp_path / "east").write_text(token({"exp": NEW_YEAR}))
    near = world(tmp_path, NEW_YEAR - SOON_SECONDS)
    near.check_tokens()
    done, waiting = Plan(), Plan(waiting=("it will be",))
    for plan in (done, waiting):
        ready, _, degraded = judge(plan, ["east", "west"], (), near.token_warnings(["east", "west"]))
        assert ready.status == ("True" if plan is done else "False")
        assert (degraded.status, degraded.reason) == ("True", "TokenExpires")
        assert "region east expires at 2026-01-01T00:00:00Z" in degraded.message
    assert judge(done, ["west"], (), near.token_warnings(["west"]))[2].reason == "AllRegionsAnswer"
    away = Plan(problems=(("east", "RegionUnreachable", "no answer"),))
    assert judge(away, ["east"], (), near.token_warnings(["east"]))[2].reason == "RegionUnreachable"


def test_metrics_show_when_each_token_expires(tmp_path: Path) -> None:
    (tmp_path / "east").write_text(token({"exp": NEW_YEAR}))
    expiries = Tokens(tmp_path).expiries
    metrics = Metrics(acts=lambda: True, objects=dict, expiries=lambda: expiries(["east", "west"]))

    def shown() -> dict[str, float]:
        lines = [line.rpartition(" ") for line in metrics.text().decode().splitlines()]
        return {name: float(value) for name, _, value in lines if name.startswith("meridian_operator_token")}

    name = 'meridian_operator_token_expiry_timestamp_seconds{region="east"}'
    assert shown() == {name: NEW_YEAR}
    (tmp_path / "east").write_text(token({"exp": NEW_YEAR + 1}))
    assert shown() == {name: NEW_YEAR + 1}
