# SPDX-License-Identifier: Apache-2.0
"""``meridian tokens``: the keys of a deployment, and tokens signed with them. No broker is involved:
anyone who has a signing key can create tokens."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from meridian_broker.cli.output import COULD_NOT_TELL, NO, error

KEY_BYTES: Final = 32
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
SHORTEST_LIFETIME: Final = 600
"""Shortest lifetime of a renewed token, in seconds: the operator needs time to pick up the next one."""
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}


@click.group("tokens")
def tokens() -> None:
    """Keys and tokens that clients authenticate with.

    A token is signed with a key and names a role. Brokers check it with the same secret key (create-secret-key), or
    with the public half of a pair (create-key-pair), which cannot sign: then no broker holds a key that creates tokens.
    """


@tokens.command("create-secret-key")
@click.argument("file", type=FILE)
def create_secret_key(file: Path) -> None:
    """Write a new secret key to FILE, readable by you only, for the setting tokenSecretKey.

    Anyone who has the key can create tokens for any role. To be able to replace it later without rejecting clients,
    keep it in a directory of its own, under a name that ends in .key, and set tokenSecretKey to the directory:

    \b
      meridian tokens create-secret-key keys/2026-05.key
    """
    _write_secret(file, secrets.token_bytes(KEY_BYTES))
    click.echo(f"{file}: set tokenSecretKey=file://{file.resolve()} in every region")


@tokens.command("create-key-pair")
@click.argument("private", type=FILE)
@click.argument("public", type=FILE)
@click.option(
    "--algorithm",
    type=click.Choice(["RS256", "ES256"]),
    default="RS256",
    show_default=True,
    help="The brokers' setting tokenPublicAlg. ES256 has the shorter keys and tokens.",
)
def create_key_pair(private: Path, public: Path, algorithm: str) -> None:
    """Write a new pair of keys: PRIVATE signs tokens and is readable by you only, PUBLIC checks them.

    Brokers get the public one alone (tokenPublicKey); keep the private one where tokens are made.

    \b
      meridian tokens create-key-pair tokens-private.pem keys/2026-05.pem
      meridian tokens create --private-key tokens-private.pem --key-id 2026-05 --subject app
    """
    from meridian_broker.gateway.token_signing import new_key_pair

    signing, checking = new_key_pair(algorithm)
    _write_secret(private, signing)
    try:
        _write_secret(public, checking)
    except SystemExit:
        private.unlink()  # so that the same command works once the cause is removed
        raise
    click.echo(f"{public}: set tokenPublicKey=file://{public.resolve()} and tokenPublicAlg={algorithm} in every region")


@tokens.command("create-peer-secret")
@click.argument("file", type=FILE)
def create_peer_secret(file: Path) -> None:
    """Write a new peer secret to FILE, readable by you only, for the setting peerTokenFile."""
    _write_secret(file, secrets.token_urlsafe(KEY_BYTES).encode() + b"\n")
    click.echo(f"{file}: copy it to every region and set peerTokenFile={file.resolve()} there")


@tokens.command("create")
@click.option("--secret-key", "secret", type=FILE, help="Sign with this secret key.")
@click.option("--private-key", "private", type=FILE, help="Sign with the private key of a pair.")
@click.option("--key-id", help="Id of the key: the name, without its suffix, of its file in the brokers' directory.")
@click.option("--subject", required=True, help="The client's role.")
@click.option("--expires", help="How long it is valid: 90d, 12h, 1y. Default: it does not expire.")
@click.option(
    "--region", "regions", multiple=True, help="Region in which it is valid. Repeatable. Default: all regions."
)
@click.option(
    "--scope",
    type=click.Choice(["admin", "export"]),
    help="admin: valid for the admin API only. export: only for what `meridian verify` reads. The role must still be "
    "one of superUserRoles.",
)
@click.option("--to", "to", type=FILE, help="Write it to this file.")
def create(
    secret: Path | None,
    private: Path | None,
    key_id: str | None,
    subject: str,
    expires: str | None,
    regions: tuple[str, ...],
    scope: str | None,
    to: Path | None,
) -> None:
    """Sign a token for a role and print it, or write it to a file readable by you only.

    Give one of --secret-key and --private-key. With --key-id the token names its key, and brokers with several keys
    try only that one; without it they try each.
    """
    from meridian_broker.gateway.authentication import RESERVED_ROLES
    from meridian_broker.gateway.key_files import BadKey, exposure
    from meridian_broker.gateway.token_signing import make_token, read_signing_key

    if (secret is None) == (private is None):
        raise click.UsageError("give one of --secret-key and --private-key")
    if not subject or subject in RESERVED_ROLES:
        error(f"the subject {subject!r} is reserved: choose another")
        raise SystemExit(NO)
    try:
        key = read_signing_key(secret, private, key_id)
    except BadKey as problem:
        error(problem)
        raise SystemExit(COULD_NOT_TELL) from None
    if exposed := exposure(secret or private or Path()):
        click.echo(f"warning: {exposed}", err=True)
    seconds = None if expires is None else seconds_of(expires)
    token = make_token(key, subject, _until(seconds), lifetime=seconds, regions=regions, scope=scope)
    if to is None:
        click.echo(token)
    else:
        _write_secret(to, token.encode())
        click.echo(f"{to}: a token for {subject}")


@tokens.command("manifest")
@click.option("--name", default="meridian-tokens", show_default=True, help="Name of the Secret.")
@click.option("--subject", default="admin", show_default=True, help="Role of the tokens for operator and verifier.")
@click.option("--expires", default="90d", show_default=True, help="How long they are valid.")
@click.option("--to", type=FILE, help="Write it to this file.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a Secret for each part to this new directory, with what that part needs, and admin.jwt for people.",
)
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="With --directory: a region for which an operator in another cluster gets a token. Repeatable.",
)
def manifest(
    name: str, subject: str, expires: str, to: Path | None, directory: Path | None, regions: tuple[str, ...]
) -> None:
    """Create a Kubernetes Secret with a new key, a new peer secret and two tokens: admin.jwt, with a super-user's role,
    for people and the operator; verify.jwt, which can only read the export, for the verifier.

    It is printed, or written to a file readable by you only. All regions need the same Secret: keep it, and apply it
    in the namespace of each region. With --directory there are two: regions.json, with the key and the peer secret,
    for each region's namespace, and verifier.json for the verifier's; the file admin.jwt beside them is for people. The
    operator needs none, because each region's chart issues it a short-lived token (operatorToken).

    With --region there is a third, for an operator in another cluster: operator.json, with a token for each region,
    REGION.jwt, which is valid there only and can only administer.

    \b
      meridian tokens manifest --directory tokens --region us-east --region us-west
      kubectl -n us-east apply -f tokens/regions.json
    """
    from meridian_broker.gateway.authentication import ADMIN_SCOPE, EXPORT_SCOPE
    from meridian_broker.gateway.token_signing import SigningKey, make_token

    if to is not None and directory is not None:
        raise click.UsageError("give one of --to and --directory")
    if regions and directory is None:
        raise click.UsageError("--region needs --directory")
    key, seconds = secrets.token_bytes(KEY_BYTES), seconds_of(expires)
    signed = partial(make_token, SigningKey(key), subject, _until(seconds), lifetime=seconds)
    admin = signed().encode()
    parts = {
        "regions": {"secret.key": key, "peer.token": secrets.token_urlsafe(32).encode()},
        "operator": {f"{one}.jwt": signed(regions=[one], scope=ADMIN_SCOPE).encode() for one in regions},
        "verifier": {"verify.jwt": signed(scope=EXPORT_SCOPE).encode()},
    }
    if directory is None:
        parts["operator"] = {"admin.jwt": admin}
    else:
        parts = {part: content for part, content in parts.items() if content}
        _make_directory(directory)
        for part, content in parts.items():
            _write_secret(directory / f"{part}.json", _secret_manifest(name, content).encode() + b"\n")
        _write_secret(directory / "admin.jwt", admin)
        click.echo(f"{directory}: the Secret {name} for {', '.join(parts)}")
        return
    text = _secret_manifest(name, {key: value for content in parts.values() for key, value in content.items()})
    if to is None:
        click.echo(text)
    else:
        _write_secret(to, text.encode() + b"\n")
        click.echo(f"{to}: the Secret {name}")


def _secret_manifest(name: str, content: Mapping[str, bytes]) -> str:
    """A Secret of Kubernetes."""
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }
    return json.dumps(document, indent=2)


@tokens.command("issue")
@click.option("--secret", required=True, metavar="NAMESPACE/NAME", help="The Secret; the token is its key `token`.")
@click.option("--region", required=True, help="Region in which the token is valid.")
@click.option("--subject", default="admin", show_default=True, help="Role of the token: one of superUserRoles.")
@click.option("--lifetime", default="24h", show_default=True, help="How long it is valid: 24h, 90m.")
@click.option("--keys", type=FOLDER, required=True, help="Directory with the region's key, secret.key.")
@click.option("--next-keys", "following", type=FOLDER, help="Directory in which the next key appears in a rotation.")
@click.option(
    "--kubernetes",
    metavar="URL",
    default="https://kubernetes.default.svc",
    show_default=True,
    help="Address of the API server, as pods know it.",
)
@click.option(
    "--account",
    type=FOLDER,
    default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    help="Directory with the token of the service account.",
)
def issue(
    secret: str,
    region: str,
    subject: str,
    lifetime: str,
    keys: Path,
    following: Path | None,
    kubernetes: str,
    account: Path,
) -> None:
    """Keep a Kubernetes Secret supplied with a token that can only administer one region. Runs until SIGTERM.

    The region's chart runs it for the operator, beside the region's key. The token is replaced when half of its
    lifetime is over, or when another key is in force.
    """
    from meridian_broker.cli.token_issuing import KubeSecret, RegionKeys, TokenIssuer, Wanted, keep_issuing

    namespace, _, name = secret.partition("/")
    if not namespace or not name:
        raise click.UsageError(f"--secret: {secret!r} is not NAMESPACE/NAME")
    wanted = Wanted(region, subject, seconds_of(lifetime, "--lifetime"))
    if wanted.lifetime < SHORTEST_LIFETIME:
        raise click.BadParameter(
            f"{lifetime}: at least 10m, so that it can be renewed in time", param_hint="--lifetime"
        )
    issuer = TokenIssuer(
        KubeSecret(namespace, name, kubernetes, account), RegionKeys(keys, following, time.monotonic), wanted, time.time
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a pod's first process does not end by itself
    keep_issuing(issuer, click.echo, time.sleep)


def seconds_of(text: str, hint: str = "--expires") -> int:
    """The seconds of a duration such as ``24h``. :raises click.BadParameter: it is not a duration."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit()) or unit not in UNITS:
        raise click.BadParameter(f"{text!r}: expected a number and one of s, m, h, d, y", param_hint=hint)
    return int(number) * UNITS[unit]


def _until(seconds: int | None) -> int | None:
    return None if seconds is None else int(time.time()) + seconds


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        click.echo(f"Error: cannot create {directory}: {error.strerror}", err=True)
        raise SystemExit(1) from None


def _write_secret(file: Path, content: bytes) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as problem:
        error(f"cannot create {file}: {problem.strerror}")
        raise SystemExit(NO) from None
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
