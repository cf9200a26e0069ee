# SPDX-License-Identifier: Apache-2.0
"""When the operator's token for a region is renewed, and with which key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import jwt
import pytest
from meridian_broker.cli.token_issuing import (
    LOOK_SECONDS,
    RETRY_SECONDS,
    SPREAD_SECONDS,
    CannotIssue,
    RegionKeys,
    TokenIssuer,
    Wanted,
    keep_issuing,
    why_due,
)
from meridian_broker.gateway.token_signing import SigningKey, make_token

DAY = 86_400
NOW = 4_000_000_000
"""Later than the machine's clock: PyJWT reads that clock, not ours."""
OLD, NEW = b"o" * 32, b"n" * 32
KEY = SigningKey(OLD)
WANTED = Wanted("east", "admin", DAY)


def issued(left: int, *, key: bytes = OLD, role: str = "admin", region: str = "east", scope: str = "admin") -> bytes:
    return make_token(SigningKey(key), role, NOW + left, regions=[region], scope=scope).encode()


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b"", "there was none"),
        (b"?", "not a token"),
        (b"\xff" * 20_000, "too long"),
        (issued(DAY), ""),
        (issued(DAY // 2 + 1), ""),
        (issued(DAY // 2), "half of its lifetime"),
        (issued(1), "half of its lifetime"),
        (issued(DAY, key=NEW), "not signed with this region's key"),
        (issued(DAY, role="somebody"), "something else"),
        (issued(DAY, scope="export"), "something else"),
        (issued(DAY, region="west"), "not for east"),
        (issued(90 * DAY), "too long"),
        (make_token(KEY, "admin", regions=["east"], scope="admin").encode(), "too long"),
        (make_token(KEY, "admin", 1, regions=["east"], scope="admin").encode(), "expired"),
    ],
)
def test_a_token_is_due_when_the_current_one_does_not_suffice(held: bytes, why: str) -> None:
    assert why in why_due(held, KEY, WANTED, NOW)
    assert bool(why_due(held, KEY, WANTED, NOW)) == bool(why)


def test_a_key_signs_once_brokers_have_had_time_to_read_it(tmp_path: Path) -> None:
    """A token must not be used before brokers know its key, nor outlive the key that is replaced."""
    now = 0.0
    keys = RegionKeys(tmp_path, tmp_path / "next", lambda: now)
    (tmp_path / "secret.key").write_bytes(OLD)
    assert keys.signing().key == OLD, "there may be no directory for the next key"
    (tmp_path / "next").mkdir()
    (tmp_path / "next/2026-11.key").write_bytes(NEW)
    assert keys.signing().key == OLD
    now = SPREAD_SECONDS - 1
    assert keys.signing().key == OLD
    now = SPREAD_SECONDS
    signing = keys.signing()
    assert (signing.key, signing.id) == (NEW, "2026-11")
    (tmp_path / "secret.key").write_bytes(NEW)
    (tmp_path / "next/2026-11.key").unlink()
    after = keys.signing()
    assert after.key == NEW
    assert not why_due(issued(DAY, key=NEW), after, WANTED, NOW), "the same key under another name"
    (tmp_path / "next/2027-05.key").write_bytes(OLD)
    assert keys.signing().key == NEW, "another rotation starts over"


@dataclass
class Held:
    """An in-memory Secret."""

    token: bytes = b""
    refuses: str = ""
    writes: list[str] = field(default_factory=list)

    def read(self) -> bytes:
        if self.refuses:
            raise CannotIssue(self.refuses)
        return self.token

    def write(self, token: str) -> None:
        self.token = token.encode()
        self.writes.append(token)


class Over(Exception):
    """Ends the loop: the test has seen enough."""


def test_it_is_renewed_at_half_of_its_lifetime_even_after_an_absence(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(OLD)
    now, secret = float(NOW), Held()
    twice = [TokenIssuer(secret, RegionKeys(tmp_path, None, lambda: 0.0), WANTED, lambda: now) for _ in range(2)]
    assert "there was none" in twice[0].look()
    assert not twice[1].look(), "one of two concurrent issuers is enough"
    said = jwt.decode(secret.token, OLD, algorithms=["HS256"], audience="east")
    assert (said["sub"], said["meridian_scope"], said["exp"]) == ("admin", "admin", NOW + DAY)
    assert said["meridian_lifetime"] == DAY
    assert "iat" not in said and "nbf" not in said, "a broker whose clock is behind accepts it too"
    for late in (DAY // 2, 40 * DAY):
        now += late
        assert "half of its lifetime" in twice[0].look()
    assert len(secret.writes) == 3


def test_a_failure_is_reported_once_and_retried(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(OLD)
    secret, said, slept = Held(refuses="no"), list[str](), list[float]()
    issuer = TokenIssuer(secret, RegionKeys(tmp_path, None, lambda: 0.0), WANTED, lambda: float(NOW))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            secret.refuses = ""
        if len(slept) == 4:
            raise Over

    with pytest.raises(Over):
        keep_issuing(issuer, said.append, sleep)
    assert slept == [RETRY_SECONDS, RETRY_SECONDS, LOOK_SECONDS, LOOK_SECONDS]
    assert said == [
        "cannot issue a token, trying again: no",
        "issued a token for region east (there was none), signed with key secret",
    ]


def test_an_unusable_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(b"short")
    issuer = TokenIssuer(Held(), RegionKeys(tmp_path, None, lambda: 0.0), WANTED, lambda: NOW)
    with pytest.raises(CannotIssue, match="holds 5 bytes"):
        issuer.look()
