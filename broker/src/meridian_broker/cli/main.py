# SPDX-License-Identifier: Apache-2.0
"""The command ``meridian``: programs, nouns with their verbs, and commands that other distributions add.

A command is imported only when it is used, so ``meridian --help`` and completion stay fast; therefore its
line in the list of commands is in this module. Another distribution adds a command by registering a click command
in the entry point group ``meridian.commands``.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any, Final

import click

from meridian_broker.cli import programs
from meridian_broker.cli.output import COULD_NOT_TELL, USAGE, error

ENTRY_POINT_GROUP: Final = "meridian.commands"

PROGRAMS: Final = {
    "await-etcd": "Wait until a region's etcd is prepared for bookies.",
    "broker": "Run one broker of a region.",
    "secure-etcd": "Switch on authentication in a region's etcd.",
    "standalone": "Run a single region in one process.",
    "up": "Run several regions on this machine.",
}

COMMANDS: Final = {
    "consume": ("consume", "Print the messages of a topic."),
    "metadata": ("metadata", "Tenants, namespaces and policies, kept the same in all regions."),
    "namespaces": ("tenancy", "Namespaces: topics that share policies."),
    "produce": ("produce", "Publish messages to a topic."),
    "regions": ("nouns", "Regions, and the links between them."),
    "subscriptions": ("subscriptions", "Subscriptions: who consumes a topic, how far."),
    "tenants": ("tenancy", "Tenants: the owners of namespaces."),
    "tokens": ("tokens", "Keys and tokens that clients authenticate with."),
    "topics": ("nouns", "Topics of a namespace."),
}
"""Name -> the module here with a command of that name, and its line in ``meridian --help``."""

IN_OTHER_DISTRIBUTIONS: Final = {"verify": ("meridian-verifier", "Prove with Spark that all regions agree.")}
"""Commands that the documentation names but that live in a distribution which may not be installed."""


class MeridianGroup(click.Group):
    """The built-in commands and those of installed distributions."""

    programs: programs.Programs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in alphabetical order."""
        return sorted({*super().list_commands(ctx), *PROGRAMS, *COMMANDS, *_installed(), *IN_OTHER_DISTRIBUTIONS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A built-in command wins over an installed one of the same name."""
        if built_in := super().get_command(ctx, cmd_name):
            return built_in
        if cmd_name in PROGRAMS:
            return programs.command(cmd_name, self.programs)
        if cmd_name in COMMANDS:
            loaded: Any = getattr(import_module(f"meridian_broker.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
            assert isinstance(loaded, click.Command)
            return loaded
        if found := _installed().get(cmd_name):
            return _load(found)
        if missing := IN_OTHER_DISTRIBUTIONS.get(cmd_name):
            return _unavailable(
                cmd_name,
                f"`meridian {cmd_name}` is part of {missing[0]}, which is not installed. In a checkout of Meridian: "
                f"pip install ./{missing[0].removeprefix('meridian-')}",
            )
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing those that are built in."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines(ctx)))

    def _lines(self, ctx: click.Context) -> Iterable[tuple[str, str]]:
        known = PROGRAMS | {name: line for name, (_, line) in (COMMANDS | IN_OTHER_DISTRIBUTIONS).items()}
        for name in self.list_commands(ctx):
            if name in known:
                yield name, known[name]
            elif command := self.get_command(ctx, name):
                yield name, command.get_short_help_str()

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """A wrong command line has an exit code of its own."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as wrong:
            wrong.exit_code = USAGE  # type: ignore[misc] # click reads it from the instance
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Subcommands are parsed here."""
        try:
            return super().invoke(ctx)
        except click.UsageError as wrong:
            wrong.exit_code = USAGE  # type: ignore[misc] # click reads it from the instance
            raise


def build(factory: programs.Programs) -> click.Group:
    """The whole command line, with the programs that it starts passed in."""
    group = MeridianGroup("meridian", help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
    group.programs = factory
    click.version_option(version("meridian-broker"), message="meridian %(version)s")(group)
    return group


_HELP: Final = """Geo-replicated messaging that speaks Apache Pulsar's protocol.

Exit code 0: yes or done. 1: no or refused. 2: unknown, for example because a region does not answer. 64: the command
line is wrong.
"""


def _installed() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=ENTRY_POINT_GROUP)}


def _load(found: EntryPoint) -> click.Command:
    """The command behind an entry point. A broken one must not take ``meridian --help`` down with it."""
    try:
        command = found.load()
    except (ImportError, AttributeError) as failure:
        return _unavailable(found.name, f"`meridian {found.name}` is installed but cannot be loaded: {failure}")
    if not isinstance(command, click.Command):
        return _unavailable(found.name, f"{found.value} is registered as a meridian command but is not a click command")
    return command


def _unavailable(name: str, sentence: str) -> click.Command:
    """A placeholder that reports why the command is not available, whatever arguments follow."""

    @click.command(name, help=sentence, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def stand_in() -> None:
        error(sentence)
        raise SystemExit(COULD_NOT_TELL)

    return stand_in
