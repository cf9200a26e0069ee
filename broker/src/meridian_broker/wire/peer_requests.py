# SPDX-License-Identifier: Apache-2.0
"""Proofs of the peer secret for single requests between regions, over HTTP (R7).

A connection is authenticated once (``wire.peer_proof``); a request stands alone. So each request has its own proof over
its whole content: method, target, body, both regions' names, the TLS connection. So does each answer, over its
request's proof, status and body: answers from a false region are not accepted.

Each request names the *run* of the broker that it is for, random bytes chosen at its start, and a time on its clock.
The broker remembers nonces for as long as their times are accepted, so it accepts each request once. A caller
learns run and clock by a *greeting*, a request without a proof, which is answered with a proven challenge. So regions'
clocks need not agree, old requests stay invalid after a restart, and an unauthenticated caller learns nothing but names
and random bytes.

``Caller`` and ``Guard`` are the two sides. They create and read headers; sending them is up to others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple

from meridian_broker.wire.peer_proof import (
    NONCE_BYTES,
    VERSION,
    NotProven,
    key_id,
    key_ids,
    pack,
    region_name,
    shared_secret,
    unpack,
)

SCHEME: Final = "Meridian-Peer "
"""Scheme in the headers ``Authorization`` and ``WWW-Authenticate``."""
PROOF_HEADER: Final = "Meridian-Peer-Proof"
"""Header of answers."""
WINDOW_MS: Final = 30_000
"""How far a request's time may be from the broker's clock."""
NONCES_MAX: Final = 100_000
"""Requests within the window. Only peers count, and none sends that many."""
HEADER_MAX: Final = 4096


class Call(NamedTuple):
    """A request."""

    method: str
    target: str
    """Path and query as they are sent."""
    body: bytes


class Signed(NamedTuple):
    """A request's header, and the values to check its answer with."""

    header: str
    nonce: bytes
    secret: bytes
    proof: bytes


class Caller:
    """Calls one other region. Times come from one monotonic clock, in milliseconds."""

    def __init__(
        self, region: str, remote: str, secrets: Callable[[], tuple[bytes, ...]], random: Callable[[int], bytes]
    ) -> None:
        self._names = (region.encode(), remote.encode())
        self._remote = remote
        self._secrets = secrets
        self._random = random
        self._run = b""
        self._ahead_ms = 0
        self._key = b""

    @property
    def has_greeted(self) -> bool:
        """Requests can be signed."""
        return bool(self._run) and any(key_id(secret) == self._key for secret in self._secrets())

    def greeting(self) -> tuple[str, bytes]:
        """The header of a greeting, and its nonce."""
        nonce = self._random(NONCE_BYTES)
        return _header(VERSION, *self._names, nonce, key_ids(self._secrets()), b"", b"", b"", b""), nonce

    def challenged(self, header: str, nonce: bytes, binding: bytes, now_ms: int) -> None:
        """Accept the challenge that came back.

        :raises NotProven: the sender is not the intended region.
        """
        run, time, key, proof = _fields(header, 4)
        secret = shared_secret(self._secrets(), key)
        expected = _proof(secret, b"challenge", *self._names, nonce, run, time, binding)
        if not run or len(time) != 8 or not hmac.compare_digest(proof, expected):
            raise NotProven(f"it did not prove that it is region {self._remote}: its proof is wrong")
        self._run, self._key = run, key
        self._ahead_ms = int.from_bytes(time, "big") - now_ms

    def forget(self) -> None:
        """The region no longer accepts our requests, because it restarted. Greet it again."""
        self._run = b""

    def sign(self, call: Call, binding: bytes, now_ms: int) -> Signed:
        """:raises NotProven: the secret that both sides knew is gone."""
        secret = shared_secret(self._secrets(), self._key)
        nonce, time = self._random(NONCE_BYTES), max(0, now_ms + self._ahead_ms).to_bytes(8, "big")
        proof = _request_proof(secret, self._names, nonce, self._run, time, binding, call)
        return Signed(
            _header(VERSION, *self._names, nonce, b"", self._run, time, self._key, proof), nonce, secret, proof
        )

    def check(self, signed: Signed, status: int, body: bytes, header: str) -> None:
        """:raises NotProven: the answer is not the region's."""
        try:
            (proof,) = _fields(header, 1)
        except NotProven:
            proof = b""
        if not hmac.compare_digest(proof, _answer_proof(signed.secret, signed.proof, status, body)):
            raise NotProven(f"the answer ({status}) does not prove that it is from region {self._remote}")


class Asked(NamedTuple):
    """The content of a request's header, not verified yet."""

    names: tuple[bytes, bytes]
    nonce: bytes
    run: bytes
    time: bytes
    secret: bytes
    proof: bytes


class Admitted(NamedTuple):
    """A request that a peer made."""

    region: str
    secret: bytes
    proof: bytes


class Guard:
    """Accepts peers' requests, each of them once."""

    def __init__(
        self, region: str, run: bytes, secrets: Callable[[], tuple[bytes, ...]], *, is_one_of_several: bool = False
    ) -> None:
        """
        :param run: ``NONCE_BYTES`` random bytes, new at each start of the broker.
        :param is_one_of_several: the region's other brokers pass on what regions ask of all of them.
        """
        self._region = region
        self._is_one_of_several = is_one_of_several
        self._run = run
        self._secrets = secrets
        self._seen: dict[bytes, int] = {}
        """Nonce -> when it may be forgotten, ordered by that time."""

    def read(self, header: str) -> Asked:
        """:raises NotProven: the header is meant for another region, or shares no secret with us."""
        version, dialler, answerer, nonce, ids, run, time, key, proof = _fields(header, 9)
        if version != VERSION or len(nonce) != NONCE_BYTES:
            raise NotProven("this request is of another version")
        if answerer != self._region.encode():
            raise NotProven(f"this is region {self._region}, not {region_name(answerer)!r}: check the address")
        if region_name(dialler) == self._region and not self._is_one_of_several:
            raise NotProven(f"this is region {self._region} itself: two regions have the same name or address")
        return Asked((dialler, answerer), nonce, run, time, shared_secret(self._secrets(), key or ids), proof)

    def challenge(self, asked: Asked, binding: bytes, now_ms: int) -> str:
        """The header that answers a greeting, or a request that comes too late or is for an earlier run."""
        time = now_ms.to_bytes(8, "big")
        proof = _proof(asked.secret, b"challenge", *asked.names, asked.nonce, self._run, time, binding)
        return _header(self._run, time, key_id(asked.secret), proof)

    def is_current(self, asked: Asked, now_ms: int) -> bool:
        """Whether it is a request for this run and about now. If not, the answer is a challenge."""
        return asked.run == self._run and abs(int.from_bytes(asked.time, "big") - now_ms) <= WINDOW_MS

    def admit(self, asked: Asked, call: Call, binding: bytes, now_ms: int) -> Admitted:
        """:raises NotProven: it was changed in transit, or was received before."""
        expected = _request_proof(asked.secret, asked.names, asked.nonce, asked.run, asked.time, binding, call)
        if not self.is_current(asked, now_ms) or not hmac.compare_digest(asked.proof, expected):
            raise NotProven(
                "the request's proof is wrong: it was changed in transit, or someone is intercepting the connection"
            )
        while self._seen and next(iter(self._seen.values())) < now_ms:
            del self._seen[next(iter(self._seen))]
        if asked.nonce in self._seen:
            raise NotProven("this request was received before")
        if len(self._seen) >= NONCES_MAX:
            raise NotProven(f"more than {NONCES_MAX} requests of other regions in {2 * WINDOW_MS // 1000} s")
        self._seen[asked.nonce] = now_ms + 2 * WINDOW_MS
        return Admitted(region_name(asked.names[0]), asked.secret, asked.proof)

    def answer(self, admitted: Admitted, status: int, body: bytes) -> str:
        """The header that proves an answer."""
        return _encoded(pack(_answer_proof(admitted.secret, admitted.proof, status, body)))


def _request_proof(
    secret: bytes, names: tuple[bytes, bytes], nonce: bytes, run: bytes, time: bytes, binding: bytes, call: Call
) -> bytes:
    said = (call.method.encode(), call.target.encode("utf-8", "surrogateescape"), hashlib.sha256(call.body).digest())
    return _proof(secret, b"request", *names, nonce, run, time, binding, *said)


def _answer_proof(secret: bytes, request: bytes, status: int, body: bytes) -> bytes:
    return _proof(secret, b"answer", request, str(status).encode(), hashlib.sha256(body).digest())


def _proof(secret: bytes, what: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret, pack(b"meridian peer request", VERSION, what, *said), hashlib.sha256)


def _header(*fields: bytes) -> str:
    return SCHEME + _encoded(pack(*fields))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _fields(header: str, count: int) -> list[bytes]:
    if len(header) > HEADER_MAX:
        raise NotProven("the proof is too long")
    try:
        return unpack(base64.b64decode(header.removeprefix(SCHEME), b"-_", validate=True), count)
    except (ValueError, binascii.Error):
        raise NotProven("the proof is not base64") from None
