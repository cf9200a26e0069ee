# SPDX-License-Identifier: Apache-2.0
"""Token keys: which of several verifies a token, that no key is used for another algorithm, and which files are
refused before a broker starts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import jwt
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from meridian_broker.cli.tokens import tokens
from meridian_broker.gateway.authentication import Authentication, NotAuthenticated
from meridian_broker.gateway.followed_files import FollowedFiles
from meridian_broker.gateway.key_files import BadKey, exposure
from meridian_broker.gateway.token_keys import TokenKey, key_paths, read_public_keys, read_secret_keys, secret_key
from meridian_broker.gateway.token_signing import SigningKey, make_token, new_key_pair, read_signing_key
from meridian_broker.server.keys import Keys
from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.settings import Settings

OLD, NEW = b"o" * 32, b"n" * 32


def checking(*keys: TokenKey) -> Authentication:
    return Authentication(keys, frozenset(), "east")


def refusal(authentication: Authentication, token: str | bytes) -> str:
    with pytest.raises(NotAuthenticated) as refused:
        authentication.check(token if isinstance(token, bytes) else token.encode())
    return str(refused.value)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Files with a private and a public key, by algorithm."""
    found = {}
    for algorithm in ("RS256", "ES256"):
        directory = tmp_path_factory.mktemp(algorithm)
        private, public = new_key_pair(algorithm)
        found[algorithm] = directory / "private.pem", directory / "public.pem"
        found[algorithm][0].write_bytes(private)
        found[algorithm][1].write_bytes(public)
    return found


def public_pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def test_a_token_is_verified_with_the_key_that_it_names_or_with_each() -> None:
    authentication = checking(secret_key(OLD, "old"), secret_key(NEW, "new"))
    for key, named in ((OLD, None), (NEW, None), (OLD, "old"), (NEW, "new"), (NEW, "another issuer's name for it")):
        assert authentication.check(make_token(SigningKey(key, id=named), "app").encode()).role == "app"
    mixed_up = make_token(SigningKey(NEW, id="old"), "app")
    assert "not signed with this region's key" in refusal(authentication, mixed_up)


def test_a_removed_key_verifies_nothing() -> None:
    authentication = checking(secret_key(OLD, "old"), secret_key(NEW, "new"))
    token = make_token(SigningKey(OLD, id="old"), "app")
    assert authentication.check(token.encode()).key == secret_key(OLD)
    authentication.use((secret_key(NEW, "old"),))
    assert "not signed with this region's key" in refusal(authentication, token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_private_key_signs_and_its_public_key_verifies(pairs: dict[str, tuple[Path, Path]], algorithm: str) -> None:
    private, public = pairs[algorithm]
    authentication = checking(*read_public_keys(str(public), algorithm))
    key = read_signing_key(None, private, "public")
    assert key.algorithm == algorithm
    assert authentication.check(make_token(key, "app").encode()).role == "app"
    strangers = SigningKey(serialization.load_pem_private_key(new_key_pair("ES256")[0], None), "ES256")
    said = refusal(authentication, make_token(strangers, "app"))
    assert ("not signed with this region's key" if algorithm == "ES256" else "an algorithm other than RS256") in said


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_public_key_is_not_accepted_as_a_secret(pairs: dict[str, tuple[Path, Path]], algorithm: str) -> None:
    """Anybody may know the public key: a token signed with it as a secret is forged."""
    public = pairs[algorithm][1]
    keys = read_public_keys(str(public), algorithm)
    for also in ((), (secret_key(OLD, "public"),)):
        authentication = checking(*keys, *also)
        for material in (public.read_bytes(), keys[0].material, public.read_bytes().strip()):
            for head in ({"alg": "HS256"}, {"alg": "HS256", "kid": "public"}, {"alg": "none"}, {"alg": "None"}, {}):
                token = by_hand({"typ": "JWT", **head}, {"sub": "admin"}, material)
                assert "the token is" in refusal(authentication, token)
        unsigned = by_hand({"typ": "JWT", "alg": "none"}, {"sub": "admin"}, None)
        assert "signed with an algorithm other than" in refusal(authentication, unsigned)


def by_hand(head: dict[str, str], claims: dict[str, str], secret: bytes | None) -> bytes:
    """Built by hand: PyJWT refuses to create such tokens."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims)]
    said = b".".join(parts)
    made = b"" if secret is None else hmac.digest(secret, said, hashlib.sha256)
    return said + b"." + base64.urlsafe_b64encode(made).rstrip(b"=")


def test_weak_keys_and_keys_of_another_kind_are_refused(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    private, public = pairs["ES256"]
    other_curve = ec.generate_private_key(ec.SECP384R1())
    cases: list[tuple[bytes, str, str]] = [
        (public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)), "RS256", "2048 bits or more"),
        (public_pem(other_curve), "ES256", "secp384r1, which does not fit"),
        (public_pem(ec.generate_private_key(ec.SECP256K1())), "ES256", "secp256k1, which does not fit"),
        (public_pem(ed25519.Ed25519PrivateKey.generate()), "ES256", "neither RSA nor"),
        (public.read_bytes(), "RS256", "does not fit tokenPublicAlg=RS256"),
        (private.read_bytes(), "ES256", "openssl pkey"),
        (b"", "ES256", "no public key"),
        (OLD, "ES256", "no public key"),
    ]
    file = tmp_path / "key"
    for content, algorithm, said in cases:
        file.write_bytes(content)
        with pytest.raises(BadKey, match=said):
            read_public_keys(str(file), algorithm)
    file.write_bytes(public_pem(other_curve))
    assert read_public_keys(str(file), "ES384")
    for content in (public.read_bytes(), private.read_bytes(), read_public_keys(str(public), "ES256")[0].material):
        file.write_bytes(content)
        with pytest.raises(BadKey, match="public keys belong to tokenPublicKey"):
            read_secret_keys(str(file))


def test_a_directory_holds_keys_named_by_their_files(tmp_path: Path) -> None:
    with pytest.raises(BadKey, match=r"files end in \.key"):
        read_secret_keys(str(tmp_path))
    for name, key in (("old.key", OLD), ("new.key", NEW), ("older.key~", b"x"), (".hidden.key", b"x")):
        (tmp_path / name).write_bytes(key)
    assert [(key.id, key.material) for key in read_secret_keys(f"file://{tmp_path}")] == [("new", NEW), ("old", OLD)]
    for number in range(20):
        (tmp_path / f"{number}.key").write_bytes(OLD)
    with pytest.raises(BadKey, match="remove old ones"):
        read_secret_keys(str(tmp_path))


def test_a_change_counts_once_the_file_is_stable_and_valid(tmp_path: Path) -> None:
    place = str(tmp_path)
    (tmp_path / "old.key").write_bytes(OLD)
    files = FollowedFiles(lambda: key_paths(place, ".key"), lambda: read_secret_keys(place))
    assert files.look() is None
    (tmp_path / "new.key").write_bytes(NEW[:1])
    assert files.look() is None, "the file may still be being written"
    (tmp_path / "new.key").write_bytes(NEW[:5])
    assert files.look() is None
    with pytest.raises(BadKey, match="holds 5 bytes"):
        files.look()
    (tmp_path / "new.key").write_bytes(NEW)
    assert files.look() is None
    assert {key.id for key in files.look() or ()} == {"old", "new"}
    (tmp_path / "old.key").unlink()
    assert files.look() is None
    assert [key.id for key in files.look() or ()] == ["new"]
    assert files.look() is None


@pytest.mark.parametrize(
    ("mode", "is_ours", "said"),
    [
        (0o600, True, None),
        (0o400, True, None),
        (0o640, True, "chmod 600"),
        (0o604, True, "chmod 600"),
        (0o440, False, None),
        (0o460, False, "chmod 440"),
        (0o444, False, "chmod 440"),
    ],
)
def test_access_of_others_to_a_secret_is_detected(
    mode: int, is_ours: bool, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(OLD)
    file.chmod(mode)
    if not is_ours:
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    told = exposure(file)
    assert told is None if said is None else told is not None and said in told and f"{mode:04o}" in told
    assert exposure(tmp_path / "absent") is None


def test_a_secret_that_other_users_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the broker's start, and for a key that is added later."""
    keys, peer = tmp_path / "keys", tmp_path / "peer"
    keys.mkdir()
    first, second = keys / "first.key", keys / "second.key"
    for file, mode in ((first, 0o644), (peer, 0o600)):
        file.write_bytes(OLD)
        file.chmod(mode)
    asked = {"authenticationEnabled": "true", "tokenSecretKey": str(keys), "peerTokenFile": str(peer)}
    followed = Keys(Settings.of(asked))
    assert f"{first} holds a secret, and mode 0644" in caplog.text
    assert f"{peer} holds" not in caplog.text
    second.write_bytes(NEW)
    second.chmod(0o606)
    in_force: list[TokenKey] = []
    for _ in range(2):
        asyncio.run(followed.follow_tokens(in_force.extend))
    assert [key.id for key in in_force] == ["first", "second"]
    assert f"{second} holds a secret, and mode 0606" in caplog.text
    assert caplog.text.count(str(first)) == 1, "it is logged once"


def test_files_that_are_not_keys_end_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"short")
    for setting in ("tokenSecretKey", "tokenPublicKey", "peerTokenFile"):
        asked = {"authenticationEnabled": "true", "tokenSecretKey": "", setting: str(file)}
        with pytest.raises(SettingsError, match=setting):
            Keys(Settings.of(asked if setting != "peerTokenFile" else {setting: str(file)}))
    with pytest.raises(SettingsError, match="set tokenSecretKey or tokenPublicKey"):
        Settings.of({"authenticationEnabled": "true"})


def test_the_command_creates_pairs_and_signs_with_them(tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "keys" / "2026-05.pem"
    make = ("create-key-pair", str(private), str(public), "--algorithm", "ES256")
    assert CliRunner().invoke(tokens, make).exit_code == 1
    assert not private.exists(), "half a pair is of no use"
    public.parent.mkdir()
    assert CliRunner().invoke(tokens, make).exit_code == 0
    assert [one.stat().st_mode & 0o777 for one in (private, public)] == [0o600, 0o600]
    before = private.read_bytes()
    assert CliRunner().invoke(tokens, make).exit_code == 1
    assert private.read_bytes() == before
    sign = ("create", "--private-key", str(private), "--key-id", "2026-05", "--subject", "app")
    made = CliRunner().invoke(tokens, sign).stdout.strip()
    assert jwt.get_unverified_header(made)["kid"] == "2026-05"
    assert checking(*read_public_keys(str(public.parent), "ES256")).check(made.encode()).role == "app"
    private.chmod(0o644)
    assert "chmod 600" in CliRunner().invoke(tokens, sign).stderr
    for options in ((), ("--private-key", str(private), "--secret-key", str(private)), ("--private-key", str(public))):
        assert CliRunner().invoke(tokens, ("create", "--subject", "app", *options)).exit_code == 2


def test_a_secret_key_signs_what_the_library_verifies(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(OLD)
    token = make_token(read_signing_key(tmp_path / "key", None, "2026-05"), "app")
    assert jwt.get_unverified_header(token)["kid"] == "2026-05"
    assert jwt.decode(token, OLD, algorithms=["HS256"]) == {"sub": "app"}
