# SPDX-License-Identifier: Apache-2.0
"""``meridian tokens``: the secret key of a deployment, and the tokens that are signed with it. Nothing is asked of a
broker: whoever has the key makes tokens."""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from pathlib import Path
from typing import Final

import click

from meridian_broker.cli.output import COULD_NOT_TELL

KEY_BYTES: Final = 32
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}


@click.group("tokens")
def tokens() -> None:
    """Keys and tokens with which clients show who they are."""


@tokens.command("create-secret-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def create_secret_key(file: Path) -> None:
    """Write a new secret key to FILE, readable by you only: the brokers' setting tokenSecretKey."""
    _write_secret(file, secrets.token_bytes(KEY_BYTES))
    click.echo(f"{file}: set tokenSecretKey=file://{file.resolve()} in every region")


@tokens.command("create-peer-secret")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def create_peer_secret(file: Path) -> None:
    """Write a new peer secret to FILE, readable by you only: the brokers' setting peerTokenFile."""
    _write_secret(file, secrets.token_urlsafe(KEY_BYTES).encode() + b"\n")
    click.echo(f"{file}: copy it to every region and set peerTokenFile={file.resolve()} there")


@tokens.command("create")
@click.option("--secret-key", "key_file", required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--subject", required=True, help="The role that the token names.")
@click.option("--expires", help="How long it is good for: 90d, 12h, 1y. Default: for ever.")
@click.option("--region", "regions", multiple=True, help="Where it is good; repeatable. Default: in every region.")
@click.option(
    "--scope", type=click.Choice(["admin"]), help="admin: for the admin API only, neither to produce nor to consume."
)
@click.option("--to", "to", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
def create(
    key_file: Path, subject: str, expires: str | None, regions: tuple[str, ...], scope: str | None, to: Path | None
) -> None:
    """Sign a token for a role and print it, or write it to a file readable by you only."""
    from meridian_broker.gateway.authentication import RESERVED_ROLES, make_token
    from meridian_broker.gateway.key_files import BadKey, read_secret_key

    if not subject or subject in RESERVED_ROLES:
        click.echo(f"no: the subject {subject!r} is reserved: choose another", err=True)
        raise SystemExit(1)
    try:
        token = make_token(
            read_secret_key(str(key_file)),
            subject,
            _expiry(expires),
            regions=regions,
            only_administers=scope == "admin",
        )
    except BadKey as error:
        click.echo(f"could not tell: {error}", err=True)
        raise SystemExit(COULD_NOT_TELL) from None
    if to is None:
        click.echo(token)
    else:
        _write_secret(to, token.encode())
        click.echo(f"{to}: a token for {subject}")


@tokens.command("manifest")
@click.option("--name", default="meridian-tokens", show_default=True, help="Name of the Secret.")
@click.option("--subject", default="admin", show_default=True, help="Role of the token for operator and verifier.")
@click.option("--expires", default="90d", show_default=True, help="How long that token is good for.")
@click.option("--to", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
def manifest(name: str, subject: str, expires: str, to: Path | None) -> None:
    """Make a Kubernetes Secret with a new key, a new peer secret and a super-user's token.

    It is printed, or written to a file readable by you only. All regions need the same one: keep it and apply it in
    each region's namespace.

    \b
      meridian tokens manifest --to tokens.json
      kubectl -n us-east apply -f tokens.json
    """
    from meridian_broker.gateway.authentication import make_token

    key = secrets.token_bytes(KEY_BYTES)
    content = {
        "secret.key": key,
        "peer.token": secrets.token_urlsafe(32).encode(),
        "admin.jwt": make_token(key, subject, _expiry(expires)).encode(),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }
    text = json.dumps(document, indent=2)
    if to is None:
        click.echo(text)
    else:
        _write_secret(to, text.encode() + b"\n")
        click.echo(f"{to}: the Secret {name}")


def _expiry(text: str | None) -> int | None:
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if not number.isdigit() or unit not in UNITS:
        raise click.BadParameter(f"{text!r}: expected a number and one of s, m, h, d, y", param_hint="--expires")
    return int(time.time()) + int(number) * UNITS[unit]


def _write_secret(file: Path, content: bytes) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        click.echo(f"no: cannot make {file}: {error.strerror}", err=True)
        raise SystemExit(1) from None
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
