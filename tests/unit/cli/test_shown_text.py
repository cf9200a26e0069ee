# SPDX-License-Identifier: Apache-2.0
"""Names and reasons chosen by others, shown to people in the log and on a terminal."""

from __future__ import annotations

import base64
import json
import logging
import sys

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.cli.output import table
from meridian_broker.gateway.authentication import Authentication, NotAuthenticated
from meridian_broker.gateway.token_keys import secret_key
from meridian_broker.gateway.token_signing import SigningKey, make_token
from meridian_broker.server.log_lines import LINE_BYTES, TRACEBACK_LINES, LogLines
from meridian_broker.wire.shown import cut, shown, shown_lines

FORGED = "x\n2026-11-22T14:05:00.000Z INFO meridian_broker: role admin signed in\x1b[2J\u009b31m\u202e\r\x7f\u2028"
KEY = b"k" * 32


@settings(max_examples=500)
@given(st.text())
def test_shown_text_is_printable(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(shown(text)) == shown(text)
    assert shown_lines(text).count("\n") == text.count("\n")
    if text.isprintable():
        assert shown(text) == text


@settings(max_examples=500)
@given(st.text(), st.integers(50, 200))
def test_truncated_text_is_within_the_limit(text: str, most: int) -> None:
    assert len(cut(text, most).encode(errors="replace")) <= most
    if len(text) * 4 <= most:
        assert cut(text, most) == text


def line(message: str, *arguments: object, error: BaseException | None = None) -> str:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return LogLines().format(logging.LogRecord("name", logging.INFO, __file__, 1, message, arguments, exc_info))


def test_a_log_line_is_one_line_of_bounded_length() -> None:
    assert line("%s", FORGED).count("\n") == 0
    assert line("%s", FORGED).isprintable()
    assert line("%s", FORGED).endswith(
        r"INFO name: x\n2026-11-22T14:05:00.000Z INFO meridian_broker: role admin signed in"
        r"\x1b[2J\x9b31m\u202e\r\x7f\u2028"
    )
    for name in ("a" * 1_000_000, "ü" * 1_000_000, "\0" * 1_000_000):
        assert len(line("%s", name).encode()) <= LINE_BYTES
        assert line("%s", name).endswith("more bytes")


def test_no_line_of_a_traceback_can_pass_for_a_log_line() -> None:
    def fail(text: str) -> BaseException:
        try:
            raise ValueError(text)
        except ValueError as error:
            return error

    first, *rest = line("it failed", error=fail(FORGED)).split("\n")
    assert first.endswith("INFO name: it failed")
    assert rest
    assert all(one.startswith("  ") and one.isprintable() for one in rest)
    long = line("it failed", error=fail("\n".join(["x" * 10_000] * 1000))).split("\n")
    assert len(long) <= 1 + TRACEBACK_LINES
    assert max(len(one.encode()) for one in long) <= LINE_BYTES
    assert sys.exc_info() == (None, None, None)


def test_a_table_shows_names_in_one_row_each() -> None:
    assert table(("name", "n"), [(FORGED, 1), ("plain ü", 2)]).count("\n") == 2
    assert "\x1b" not in table((), [()]) + table(("name",), [(FORGED,)])


def _signed(header: dict[str, object], claims: dict[str, object]) -> bytes:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    return b".".join([*parts, b"eA"])


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (_signed({"alg": "HS256", "crit": [FORGED]}, {"sub": "admin"}), "this is not a token, or it is damaged"),
        (_signed({"alg": FORGED}, {"sub": "admin"}), "the token is signed with an algorithm other than"),
        (_signed({"alg": "HS256"}, {"sub": FORGED}), "the token is not signed with this region's key"),
        (b"\x1b[2J", "this is not a token, or it is damaged"),
        (jwt.encode({"sub": "a", "nbf": 1 << 40}, KEY, "HS256").encode(), "the token is not valid yet"),
        (jwt.encode({"sub": "a", "exp": 1}, KEY, "HS256").encode(), "the token has expired: get a new one"),
        (jwt.encode({"iss": FORGED}, KEY, "HS256").encode(), "the token names no role: it has no subject"),
        (jwt.encode({"sub": 1, "iss": FORGED}, KEY, "HS256").encode(), "the token names no role: its subject is no"),
        (jwt.encode({"sub": "a", "aud": FORGED}, KEY, "HS256").encode(), "the token is not for east"),
    ],
)
def test_a_token_that_is_refused_is_not_quoted(token: bytes, said: str) -> None:
    authentication = Authentication((secret_key(KEY),), frozenset(), "east")
    with pytest.raises(NotAuthenticated) as refused:
        authentication.check(token)
    assert str(refused.value).startswith(said)
    assert str(refused.value).isprintable()
    assert authentication.check(make_token(SigningKey(KEY), "app").encode()).role == "app"
