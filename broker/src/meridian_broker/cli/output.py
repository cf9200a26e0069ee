# SPDX-License-Identifier: Apache-2.0
"""How a command reports its result: a plain table for people, JSON for programs, and the exit code for both.

Exit codes mean the same in every command: 0 yes (it is so, it is done), 1 no (the broker refused, or it is not so), 2
unknown (no answer), 64 usage (the command line is wrong; nothing was tried). Every error is one line on standard error
that begins with ``Error:``, as those of click do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click

from meridian_broker.cli.rest import Admin, AdminRefused, AdminUnreachable, read_token
from meridian_broker.gateway.tls import ContextSource, TlsFiles, TlsFilesUnusable, client_context
from meridian_broker.wire.shown import shown

NO = 1
COULD_NOT_TELL = 2
USAGE = 64
"""As in sysexits.h. click's own code for it is 2, which would look like an outage."""

Arguments = ParamSpec("Arguments")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their longest cell, two spaces between them, no lines."""
    cells = [list(header), *([shown(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def say(*lines: str, err: bool = False) -> None:
    """Print lines for people. Names in them come from others, so control characters are escaped."""
    click.echo("\n".join(map(shown, lines)), err=err)


def error(sentence: object) -> None:
    """The one way to report an error."""
    say(f"Error: {sentence}", err=True)


force_option = click.option("--force", is_flag=True, help="Delete it even if it is in use, in all its regions.")


def forced(force: bool) -> dict[str, str]:
    """The query that every forced deletion carries."""
    return {"force": "true"} if force else {}


@dataclass(frozen=True, slots=True)
class Console:
    """Passed to every command that talks to a broker: the API, and how to print results."""

    admin: Admin
    as_json: bool

    def names(self, names: Sequence[str]) -> None:
        """A list of names, one per line."""
        if self.as_json:
            click.echo(json.dumps(list(names)))
        elif names:
            say(*names)

    def rows(self, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Objects as a table with these columns; JSON prints them whole."""
        if self.as_json:
            click.echo(json.dumps(list(rows)))
        else:
            click.echo(table(header, [[_cell(row.get(column)) for column in header] for row in rows]))

    def tree(self, value: Any) -> None:
        """A nested object: JSON either way, indented for people."""
        click.echo(json.dumps(value) if self.as_json else json.dumps(value, indent=2))

    def done(self, sentence: str, *, regions: Sequence[str] = ()) -> None:
        """Report a change. With ``--json`` this prints an object, so that programs can parse every output.

        :param regions: where, if the command changed several.
        """
        said: dict[str, Any] = {"done": sentence} | ({"regions": list(regions)} if regions else {})
        click.echo(json.dumps(said) if self.as_json else shown(sentence))


token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token to authenticate with (never an argument: other users can read those).",
)
trust_option = click.option(
    "--tls-trust-certs",
    envvar="MERIDIAN_TLS_TRUST_CERTS",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM file with the CA certificates to trust for TLS. Default: the system's.",
)


def trusting(authorities: Path | None) -> ContextSource | None:
    """TLS according to ``--tls-trust-certs``; None: the system's trust store.

    :raises click.BadParameter: the file contains no certificates.
    """
    if authorities is None:
        return None
    try:
        return client_context(TlsFiles(trusted=authorities))
    except TlsFilesUnusable as error:
        raise click.BadParameter(str(error), param_hint="--tls-trust-certs") from error


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return json.dumps(value)


def admin_url(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """An admin address as typed.

    :raises click.BadParameter: it is something else; the message recognises the service URL of ``produce``.
    """
    if text.startswith(("pulsar://", "pulsar+ssl://")):
        raise click.BadParameter(
            f"{text} is a service URL. This command needs the admin address, as in http://127.0.0.1:8080; "
            "`meridian regions list` shows both"
        )
    if not text.startswith(("http://", "https://")):
        raise click.BadParameter(f"{text!r} is not an admin address: write http://HOST:PORT")
    return text


def with_console(command: Callable[Concatenate[Console, Arguments], None]) -> Callable[..., None]:
    """Give a command ``--url``, ``--token-file`` and ``--json``, and turn the API's failures into exit codes."""

    @click.option(
        "--url",
        envvar="MERIDIAN_URL",
        default="http://127.0.0.1:8080",
        show_default=True,
        show_envvar=True,
        callback=admin_url,
        help="Admin address of a region.",
    )
    @token_file_option
    @trust_option
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def wrapped(
        url: str,
        token_file: Path | None,
        tls_trust_certs: Path | None,
        as_json: bool,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        try:
            token = read_token(token_file) if token_file else None
            tls = trusting(tls_trust_certs)
            command(Console(Admin(url, token, tls() if tls else None), as_json), *args, **kwargs)
        except AdminRefused as refusal:
            error(refusal)
            raise SystemExit(NO) from None
        except AdminUnreachable as silence:
            error(silence)
            raise SystemExit(COULD_NOT_TELL) from None

    return wrapped
