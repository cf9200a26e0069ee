# SPDX-License-Identifier: Apache-2.0
"""How brokers prove to each other that they know the peer secret, without sending it (R7).

Three messages; ``Dialling`` and ``Answering`` are the two sides, without any I/O:

    dialler  -> answerer  opening    both regions' names, a nonce, the ids of the secrets that it knows
    answerer -> dialler   challenge  the id of the secret to use, another nonce, the answerer's proof
    dialler  -> answerer  response   the dialler's proof

A proof is an HMAC-SHA256 under the secret over everything that identifies this conversation: its purpose, which
side speaks, both names, both nonces, and the *binding* of the connection underneath, which is empty without TLS. So a
proof cannot be used again: not later (nonces), not towards another region (names), not back to its maker (side), not
for another purpose, and, with TLS, not on another connection, even one just opened by a man in the middle.

The answerer proves itself first. A dialler that was directed to a false address has revealed two names and
random bytes, and ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

VERSION: Final = b"1"
LINK: Final = b"link"
"""Purpose of a proof: a connection of the binary protocol between two regions."""
WITHIN: Final = b"within"
"""Purpose of a proof: such a connection between two brokers of one region."""
NONCE_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
KEYS_MAX: Final = 16
"""Ids of secrets in an opening."""
FIELD_MAX: Final = 1024
"""Bytes of one field of a message."""
_ANSWERER: Final = b"answerer"
_DIALLER: Final = b"dialler"


class NotProven(Exception):
    """The other side did not prove that it is the region it should be. The message says why, and may be sent to it."""


def pack(*fields: bytes) -> bytes:
    """Fields as bytes; different fields give different bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def unpack(data: bytes, count: int) -> list[bytes]:
    """The inverse of ``pack``. :raises NotProven: the bytes are not a packed message."""
    fields: list[bytes] = []
    at = 0
    while at < len(data) and len(fields) < count:
        size = int.from_bytes(data[at : at + 4], "big")
        if size > FIELD_MAX or at + 4 + size > len(data):
            break
        fields.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(data) or len(fields) != count:
        raise NotProven("this is not a message of the handshake between regions: does the other side run this version?")
    return fields


def key_id(secret: bytes) -> bytes:
    """Names a secret without revealing it, so that both sides find a shared one while secrets are being changed."""
    return hmac.digest(secret, pack(b"meridian peer secret", VERSION), hashlib.sha256)[:KEY_ID_BYTES]


def shared_secret(secrets: Sequence[bytes], ids: bytes) -> bytes:
    """The first of our secrets that the other side knows, by the ids it sent.

    :raises NotProven: there is none.
    """
    if len(ids) % KEY_ID_BYTES or len(ids) > KEYS_MAX * KEY_ID_BYTES:
        raise NotProven("the list of secret ids cannot be decoded")
    known = {ids[at : at + KEY_ID_BYTES] for at in range(0, len(ids), KEY_ID_BYTES)}
    for secret in secrets:
        if key_id(secret) in known:
            return secret
    raise NotProven("the two regions have different peer secrets: all regions need the same one (peerTokenFile)")


def key_ids(secrets: Sequence[bytes]) -> bytes:
    """The ids of these secrets, for an opening."""
    return b"".join(map(key_id, secrets))


def region_name(data: bytes) -> str:
    """:raises NotProven: the bytes are not UTF-8 text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NotProven("the name of a region is not text") from None


class Dialling:
    """The side that opened the connection. ``opening``, then ``respond`` once."""

    def __init__(
        self,
        secrets: Sequence[bytes],
        dialler: str,
        answerer: str,
        nonce: bytes,
        binding: bytes,
        purpose: bytes = LINK,
    ) -> None:
        """:param nonce: ``NONCE_BYTES`` random bytes. :param binding: of the connection, see ``gateway.tls``."""
        self.answerer = answerer
        self.key = b""
        """Id of the secret that both sides proved; empty before that."""
        self._secrets = tuple(secrets)
        self._names = (dialler.encode(), answerer.encode())
        self._nonce = nonce
        self._binding = binding
        self._purpose = purpose
        self._is_over = False

    def opening(self) -> bytes:
        return pack(VERSION, self._purpose, *self._names, self._nonce, key_ids(self._secrets))

    def respond(self, challenge: bytes) -> bytes:
        """Check the answerer's proof, and only then create ours.

        :raises NotProven: it is not the intended region.
        """
        if self._is_over:
            raise NotProven("a second challenge")
        self._is_over = True
        ids, nonce, proof = unpack(challenge, 3)
        secret = shared_secret(self._secrets, ids)
        said = (self._purpose, *self._names, self._nonce, nonce, self._binding)
        if len(nonce) != NONCE_BYTES or not hmac.compare_digest(proof, _proof(secret, _ANSWERER, *said)):
            raise NotProven(f"it did not prove that it is region {self.answerer}: its proof is wrong")
        self.key = key_id(secret)
        return _proof(secret, _DIALLER, *said)


class Answering:
    """The side that was dialled. ``challenge`` once, then ``check`` once."""

    def __init__(
        self,
        secrets: Sequence[bytes],
        region: str,
        nonce: bytes,
        binding: bytes,
        purpose: bytes = LINK,
        broker: str = "",
    ) -> None:
        """As for ``Dialling``.

        :param region: this one.
        :param broker: name of this broker among those of its region, ``REGION/BROKER``, for their connections
            (``WITHIN``) besides those of the purpose; empty: there are no others.
        """
        self.dialler = ""
        """The region, or the broker of this one, that the other side says it is."""
        self.purpose = b""
        """What the connection is for; empty before the challenge."""
        self.key = b""
        """Id of the secret to prove; empty before the challenge."""
        self._secrets = tuple(secrets)
        self._region = region
        self._nonce = nonce
        self._binding = binding
        self._purposes = {purpose: region, WITHIN: broker} if broker else {purpose: region}
        self._expected = b""

    def challenge(self, opening: bytes) -> bytes:
        """:raises NotProven: the opening is meant for another region, or shares no secret with us."""
        version, purpose, dialler, answerer, nonce, ids = unpack(opening, 6)
        if self._expected:
            raise NotProven("a second opening")
        if version != VERSION or purpose not in self._purposes or len(nonce) != NONCE_BYTES:
            raise NotProven("this handshake is of another version or for another purpose")
        own = self._purposes[purpose]
        shown = f"broker {own}" if purpose == WITHIN else f"region {own}"
        if answerer != own.encode():
            raise NotProven(f"this is {shown}, not {region_name(answerer)!r}: check the address")
        self.dialler = region_name(dialler)
        if self.dialler == own:
            raise NotProven(f"this is {shown} itself: two regions or brokers have the same name or address")
        if purpose == WITHIN and not self.dialler.startswith(f"{self._region}/"):
            raise NotProven(f"{self.dialler!r} is not a broker of region {self._region}")
        self.purpose = purpose
        secret = shared_secret(self._secrets, ids)
        said = (purpose, dialler, answerer, nonce, self._nonce, self._binding)
        self._expected = _proof(secret, _DIALLER, *said)
        self.key = key_id(secret)
        return pack(self.key, self._nonce, _proof(secret, _ANSWERER, *said))

    def check(self, response: bytes) -> str:
        """The dialler's region. :raises NotProven: it does not know the secret."""
        expected, self._expected = self._expected, b""
        if not expected or not hmac.compare_digest(response, expected):
            raise NotProven(
                "the proof is wrong: the peer secret is not the same, or someone is intercepting the connection"
            )
        return self.dialler


def _proof(secret: bytes, side: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret, pack(b"meridian peer proof", VERSION, side, *said), hashlib.sha256)
