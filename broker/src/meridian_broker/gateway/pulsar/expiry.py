# SPDX-License-Identifier: Apache-2.0
"""Ends connections when the tokens they were opened with expire.

A client that announced in CONNECT that it can refresh its token is asked for a new one by AUTH_CHALLENGE when the old
one expires, as in Pulsar, and continues meanwhile. One that does not answer in time, or cannot be asked, is
disconnected and needs a valid token to reconnect. The same happens when the key that signed a token is removed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from meridian_broker.gateway.token_keys import TokenKey

ANSWER_SECONDS: Final = 10
"""How long a client may take to send a new token; a client library may have to ask another service for it."""


class Expiring(Protocol):
    """A connection with a token that expires."""

    can_refresh: bool
    """The client answers AUTH_CHALLENGE."""

    def ask_for_token(self) -> None:
        """Send AUTH_CHALLENGE."""
        ...

    def end(self, reason: str) -> None:
        """Close it."""
        ...


class Expiries:
    """When the token of each connection expires. Times are in seconds since 1970, as in tokens."""

    def __init__(self) -> None:
        self._until: dict[Expiring, int] = {}
        self._keys: dict[Expiring, TokenKey] = {}
        """The key that signed each connection's token."""
        self._keyless: set[Expiring] = set()
        """Connections whose token's key was removed."""
        self._asked: set[Expiring] = set()
        self._next: int | None = None
        """No token expires before this time."""

    def watch(self, connection: Expiring, expires: int | None, key: TokenKey | None = None) -> None:
        """The connection has a new token.

        :param expires: None: never.
        :param key: the key that signed it.
        """
        self.forget(connection)
        if key is not None:
            self._keys[connection] = key
        if expires is not None:
            self._due(connection, expires)

    def forget(self, connection: Expiring) -> None:
        """The connection is closed, or has replaced its token."""
        self._until.pop(connection, None)
        self._keys.pop(connection, None)
        self._keyless.discard(connection)
        self._asked.discard(connection)

    def was_asked(self, connection: Expiring) -> bool:
        """Whether the client has been asked for a new token."""
        return connection in self._asked

    def keep_only(self, keys: Collection[TokenKey], now: int) -> None:
        """Tokens signed by other keys expire now."""
        kept = frozenset(keys)
        for connection in [one for one, key in self._keys.items() if key not in kept]:
            del self._keys[connection]
            if connection not in self._asked:
                self._keyless.add(connection)
                self._due(connection, now)

    def look(self, now: int) -> None:
        """Handle expired tokens. Costs nothing if there are none, however many connections there are."""
        if self._next is None or now < self._next:
            return
        for connection in [one for one, until in self._until.items() if until <= now]:
            if connection in self._asked or not connection.can_refresh:
                reason = "the key of its token was removed" if connection in self._keyless else "its token has expired"
                self.forget(connection)
                connection.end(reason)
            else:
                self._asked.add(connection)
                self._until[connection] = now + ANSWER_SECONDS
                connection.ask_for_token()
        self._next = min(self._until.values(), default=None)

    def _due(self, connection: Expiring, at: int) -> None:
        self._until[connection] = at
        self._next = at if self._next is None else min(self._next, at)
