# SPDX-License-Identifier: Apache-2.0
"""Keys that verify and sign tokens: secret keys (HS256 and longer), and pairs of RSA or elliptic-curve keys, of which
brokers hold the public half.

A key is bound to one family of algorithms when it is read. A token's algorithm only selects among the keys of that
family, so a public key, which anyone may know, never serves as a secret.

A setting names one file, or a directory with several while keys are replaced. In a directory a file's name without its
suffix is the key's id, which tokens may name (``kid``, RFC 7515).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.key_files import SHORTEST, BadKey, read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
"""Each curve belongs to one algorithm (RFC 7518)."""
SECRET_SUFFIX: Final = ".key"
PUBLIC_SUFFIX: Final = ".pem"
KEYS_MAX: Final = 16
"""Keys of a directory. A token that names no key is tried with each."""
SMALLEST_RSA: Final = 2048
"""Bits (RFC 7518, section 3.3)."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key that verifies tokens. Two are equal if they accept the same tokens, whatever their files are called."""

    id: str = field(compare=False)
    """Its id in tokens."""
    algorithms: tuple[str, ...]
    material: bytes = field(repr=False)
    """The secret, or the public key in DER."""
    checker: Any = field(compare=False, repr=False)
    """The same, in the form PyJWT expects."""


def secret_key(material: bytes, key_id: str = "") -> TokenKey:
    """A key that both signs and verifies."""
    return TokenKey(key_id, SECRET_ALGORITHMS, material, material)


def read_secret_keys(place: str) -> tuple[TokenKey, ...]:
    """The keys that ``tokenSecretKey`` names: ``file:///path`` or a path, of a file or a directory.

    :raises BadKey: there is none, or one of them cannot be used.
    """
    return tuple(secret_key(read_secret_key(path), path.stem) for path in _key_files("tokenSecretKey", place))


def read_secret_key(path: Path) -> bytes:
    """The key in a file. Its bytes are the key, without any encoding, as in Pulsar.

    :raises BadKey: it cannot be read, is too short to be safe, or is a key of another kind.
    """
    from jwt.algorithms import HMACAlgorithm
    from jwt.exceptions import InvalidKeyError

    key = read_file("tokenSecretKey", path)
    if len(key) < SHORTEST:
        raise BadKey(f"tokenSecretKey: {path} holds {len(key)} bytes: a key needs at least {SHORTEST}")
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(key)
    except InvalidKeyError:
        raise BadKey(
            f"tokenSecretKey: {path} holds a public or private key, or a key in JSON: public keys belong to "
            "tokenPublicKey; `meridian tokens create-secret-key` creates a secret key"
        ) from None
    return key


def read_public_keys(place: str, algorithm: str) -> tuple[TokenKey, ...]:
    """The keys that ``tokenPublicKey`` names, as for ``read_secret_keys``, in PEM or DER.

    :param algorithm: ``tokenPublicAlg``.
    :raises BadKey: there is none, or one cannot be read, does not fit the algorithm, or is too weak.
    """
    return tuple(_read_public_key(path, algorithm) for path in _key_files("tokenPublicKey", place))


def _read_public_key(path: Path, algorithm: str) -> TokenKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    data = read_file("tokenPublicKey", path)
    if b"PRIVATE KEY" in data:
        raise BadKey(
            f"tokenPublicKey: {path} holds a private key, which no broker needs: give it the public one "
            f"(openssl pkey -in {path} -pubout)"
        )
    try:
        is_pem = b"-----BEGIN" in data
        key = serialization.load_pem_public_key(data) if is_pem else serialization.load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey(
            f"tokenPublicKey: {path} holds no public key: expected one in PEM or DER (SubjectPublicKeyInfo)"
        ) from None
    _check(path, key, algorithm)
    material = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return TokenKey(path.stem, (algorithm,), material, key)


def _check(path: Path, key: PublicKeyTypes, algorithm: str) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey):
        found, fits = f"an RSA key of {key.key_size} bits", algorithm.startswith("RS")
        if fits and key.key_size < SMALLEST_RSA:
            raise BadKey(f"tokenPublicKey: {path} holds {found}: expected {SMALLEST_RSA} bits or more")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        found, fits = f"a key on the curve {key.curve.name}", CURVES.get(key.curve.name) == algorithm
    else:
        found, fits = "a key that is neither RSA nor elliptic-curve", False
    if not fits:
        raise BadKey(f"tokenPublicKey: {path} holds {found}, which does not fit tokenPublicAlg={algorithm}")


def key_paths(place: str, suffix: str) -> list[Path]:
    """The current key files: ``place`` itself, or those in a directory that end in ``suffix``.

    Other files in a directory are ignored: an editor's backup of a removed key must not bring it back.
    """
    path = Path(place.removeprefix("file://"))
    try:
        return sorted(one for one in path.iterdir() if one.suffix == suffix and not one.name.startswith("."))
    except OSError:
        return [path]


def _key_files(setting: str, place: str) -> list[Path]:
    suffix = SECRET_SUFFIX if setting == "tokenSecretKey" else PUBLIC_SUFFIX
    found = key_paths(place, suffix)
    if not found:
        raise BadKey(f"{setting}: {place} is a directory without keys: their files end in {suffix}")
    if len(found) > KEYS_MAX:
        raise BadKey(f"{setting}: {place} holds {len(found)} keys, at most {KEYS_MAX} are allowed: remove old ones")
    return found
