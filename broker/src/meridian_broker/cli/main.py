# SPDX-License-Identifier: Apache-2.0
"""The command ``meridian``: programs, nouns with their verbs, and what other distributions add.

Another distribution adds a command by registering a click command in the entry point group ``meridian.commands``. It is
imported only when it is called for, because importing Spark to list topics would be slow.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points, version
from typing import Final

import click

from meridian_broker.cli import nouns, programs, subscriptions, tokens
from meridian_broker.cli.output import COULD_NOT_TELL

ENTRY_POINT_GROUP: Final = "meridian.commands"

MOVE_MESSAGES: Final = ("consume", "produce")
"""Commands that speak Pulsar's binary protocol. They are imported on demand: it is a third of a second to load."""

IN_OTHER_DISTRIBUTIONS: Final = {"verify": "meridian-verifier"}
"""Commands that are spoken of in the documentation but live in a distribution that may not be installed."""


class MeridianGroup(click.Group):
    """The built-in commands and those of installed distributions."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the alphabet."""
        return sorted({*super().list_commands(ctx), *MOVE_MESSAGES, *_installed(), *IN_OTHER_DISTRIBUTIONS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A built-in command wins over an installed one of the same name."""
        if built_in := super().get_command(ctx, cmd_name):
            return built_in
        if cmd_name in MOVE_MESSAGES:
            return _moves_messages(cmd_name)
        if found := _installed().get(cmd_name):
            return _load(found)
        if distribution := IN_OTHER_DISTRIBUTIONS.get(cmd_name):
            return _unavailable(
                cmd_name,
                f"`meridian {cmd_name}` is part of {distribution}, which is not installed: pip install {distribution}",
            )
        return None


def build(factory: programs.Programs) -> click.Group:
    """The whole command line, with what its programs start passed in."""
    group = MeridianGroup("meridian", help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
    click.version_option(version("meridian-broker"), message="meridian %(version)s")(group)
    for command in programs.commands(factory):
        group.add_command(command)
    for noun in (
        nouns.tenants,
        nouns.namespaces,
        nouns.topics,
        nouns.regions,
        subscriptions.subscriptions,
        tokens.tokens,
    ):
        group.add_command(noun)
    return group


_HELP: Final = """Geo-replicated messaging that speaks Apache Pulsar's protocol.

Exit code 0 means yes, 1 means no, 2 means that it could not be told.
"""


def _moves_messages(name: str) -> click.Command:
    from meridian_broker.cli.consume import consume
    from meridian_broker.cli.produce import produce

    return consume if name == "consume" else produce


def _installed() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=ENTRY_POINT_GROUP)}


def _load(found: EntryPoint) -> click.Command:
    """The command behind an entry point. A broken one must not take ``meridian --help`` down with it."""
    try:
        command = found.load()
    except (ImportError, AttributeError) as error:
        return _unavailable(found.name, f"`meridian {found.name}` is installed but cannot be loaded: {error}")
    if not isinstance(command, click.Command):
        return _unavailable(found.name, f"{found.value} is registered as a meridian command but is none")
    return command


def _unavailable(name: str, sentence: str) -> click.Command:
    """A stand-in that says why there is no such command, whatever arguments follow."""

    @click.command(name, help=sentence, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def stand_in() -> None:
        click.echo(sentence, err=True)
        raise SystemExit(COULD_NOT_TELL)

    return stand_in
