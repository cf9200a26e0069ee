# SPDX-License-Identifier: Apache-2.0
"""Creates keys, and tokens signed with them. Brokers do neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from meridian_broker.gateway.authentication import SCOPE_CLAIM
from meridian_broker.gateway.key_files import BadKey, read_file
from meridian_broker.gateway.token_keys import CURVES, SECRET_ALGORITHMS, SMALLEST_RSA, read_secret_key

LIFETIME_CLAIM: Final = "meridian_lifetime"
"""Claim with the seconds from a token's creation to its expiry. Not ``iat``, which names a time: brokers whose clocks
are behind the issuer's would refuse the token for a while.
"""
RSA_BITS: Final = 3072
"""Size of a new key: as strong as 128 bits of a secret key (NIST SP 800-57)."""


class SigningKey(NamedTuple):
    """A key that signs tokens."""

    key: Any
    """In the form PyJWT expects."""
    algorithm: str = SECRET_ALGORITHMS[0]
    id: str | None = None
    """Written into the token (``kid``), so that brokers with several keys need not try each; None: no id is written."""


def read_signing_key(secret: Path | None, private: Path | None, key_id: str | None = None) -> SigningKey:
    """The key in one of two files. :raises BadKey: it cannot be read, or does not sign tokens."""
    if private is None:
        assert secret is not None
        return SigningKey(read_secret_key(secret), id=key_id)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    data = read_file("--private-key", private)
    try:
        is_pem = b"-----BEGIN" in data
        load = serialization.load_pem_private_key if is_pem else serialization.load_der_private_key
        key = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadKey(f"--private-key: {private} holds no private key without a password, in PEM or DER") from None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= SMALLEST_RSA:
        return SigningKey(key, "RS256", key_id)
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in CURVES:
        return SigningKey(key, CURVES[key.curve.name], key_id)
    raise BadKey(
        f"--private-key: {private} holds a key that signs no tokens: expected RSA with {SMALLEST_RSA} bits or more, "
        f"or one of the curves {', '.join(CURVES)}"
    )


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """A private and a public key in PEM, for RS256 or ES256."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm == "RS256":
        key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def make_token(
    key: SigningKey,
    role: str,
    expires: int | None = None,
    *,
    lifetime: int | None = None,
    regions: Sequence[str] = (),
    scope: str | None = None,
) -> str:
    """A token for a role.

    :param expires: in seconds since 1970; None: never.
    :param lifetime: seconds for which it is valid, for those who renew it or monitor its renewal.
    :param regions: regions in which it is valid; empty: all.
    :param scope: limits the token to this scope; None: everything that its role may do.
    """
    import jwt

    claims: dict[str, object] = {"sub": role}
    if expires is not None:
        claims["exp"] = expires
    if lifetime is not None:
        claims[LIFETIME_CLAIM] = lifetime
    if regions:
        claims["aud"] = list(regions)
    if scope is not None:
        claims[SCOPE_CLAIM] = scope
    return jwt.encode(claims, key.key, algorithm=key.algorithm, headers=None if key.id is None else {"kid": key.id})
