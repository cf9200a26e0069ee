# SPDX-License-Identifier: Apache-2.0
"""Named listeners and bind addresses, as written in settings."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.gateway.addresses import Addresses, BindAddress, parse_bind_addresses, parse_listeners, url
from meridian_broker.server.settings import Settings, SettingsError

names = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
places = st.tuples(st.sampled_from(["a.example", "10.0.0.1", "::1"]), st.integers(1, 65535))


@settings(max_examples=500)
@given(st.dictionaries(names, st.dictionaries(st.sampled_from(["pulsar+ssl", "http", "https"]), places), max_size=4))
def test_valid_listeners_are_parsed(wanted: dict[str, dict[str, tuple[str, int]]]) -> None:
    book = {name: {"pulsar": ("h", 1), **ways} for name, ways in wanted.items()}
    text = ", ".join(f"{name}:{url(scheme, *where)}" for name, ways in book.items() for scheme, where in ways.items())
    assert parse_listeners(text) == {
        name: Addresses(
            *(
                url(scheme, *ways[scheme]) if scheme in ways else None
                for scheme in ("pulsar", "pulsar+ssl", "http", "https")
            )
        )
        for name, ways in book.items()
    }
    assert list(parse_listeners(text)) == list(book)


@settings(max_examples=500)
@given(st.text(st.sampled_from("ab:,/pulsar+ssl.[]@1 6650"), max_size=40))
def test_invalid_listeners_raise_one_kind_of_error(text: str) -> None:
    for parse in (parse_listeners, parse_bind_addresses):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)


def test_bind_addresses() -> None:
    assert parse_bind_addresses("in:pulsar://127.0.0.1:6660,out:pulsar+ssl://[::1]:6661") == [
        BindAddress("in", False, "127.0.0.1", 6660),
        BindAddress("out", True, "::1", 6661),
    ]


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ({"advertisedListeners": "in:pulsar://a:1,in:pulsar://b:2"}, "two pulsar addresses"),
        ({"advertisedListeners": "in:http://a:1"}, "has no pulsar"),
        ({"advertisedListeners": "in:ftp://a:1"}, "expected name:scheme://host:port"),
        ({"advertisedListeners": "in:pulsar://a"}, "a host and a port"),
        ({"advertisedListeners": "in:pulsar://a:1", "internalListenerName": "out"}, "no listener 'out'"),
        ({"bindAddresses": "in:pulsar://127.0.0.1:1"}, "no listener 'in'"),
        ({"advertisedListeners": "in:pulsar://a:1", "bindAddresses": "in:pulsar://0.0.0.0:1"}, "nothing authenticates"),
        ({"advertisedListeners": "in:pulsar://a:1", "bindAddresses": "in:http://127.0.0.1:1"}, "can be bound"),
        ({"advertisedListeners": "in:pulsar://a:1", "bindAddresses": "in:pulsar+ssl://127.0.0.1:1"}, "tlsCertificate"),
        ({"tlsKeyFilePath": "/a"}, "both or neither"),
        ({"brokerClientCertificateFilePath": "/a"}, "both or neither"),
        ({"tlsRequireTrustedClientCertOnConnect": "true"}, "tlsTrustCertsFilePath"),
    ],
)
def test_settings_that_do_not_go_together(pairs: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Settings.of(pairs)
