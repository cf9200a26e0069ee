# SPDX-License-Identifier: Apache-2.0
"""Every ``meridian`` command in the documentation exists, with the options used there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from meridian_broker.cli.main import build
from meridian_broker.server.main import ServerPrograms
from support.checkout.source_files import ROOT, files

ROOT_COMMAND = build(ServerPrograms())
QUOTED = re.compile(r"`meridian ([^`]+)`")
INDENTED = re.compile(r"^(?:    |\$ )(?:\S*bin/)?meridian (.+)")
END = re.compile(r"\s\s+|\s[|>#;&(]|[,:]\s")
"""Ends a command within a line: the text after it is explanation."""


def documented(page: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        for text in QUOTED.findall(line) or INDENTED.findall(line):
            words = END.split(text)[0].split()
            if words and words[0][0].islower():
                yield number, words


def options(command: click.Command) -> set[str]:
    return {"--help"}.union(*(option.opts + option.secondary_opts for option in command.params))


def wrong(words: list[str]) -> str | None:
    """What of it does not exist. ``a|b`` stands for several commands."""
    command: click.Command = ROOT_COMMAND
    while words and isinstance(command, click.Group):
        name, *words = words
        context = click.Context(command)
        found = [command.get_command(context, one) for one in name.split("|")]
        if None in found:
            return name
        command = found[0] or command
    given = (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word))
    return next((option for option in given if option not in options(command)), None)


def test_documented_commands_exist() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    found = [(page, number, words) for page in pages for number, words in documented(page)]
    assert len(found) > 80
    offences = [
        f"{page}:{number}: meridian {' '.join(words)}: {missing}"
        for page, number, words in found
        if (missing := wrong(words)) is not None
    ]
    assert not offences, "\n".join(offences)


def test_a_command_or_option_that_does_not_exist_is_detected() -> None:
    assert wrong(["topics", "stats", "t", "--help"]) is None
    assert wrong(["topics", "fly"]) == "fly"
    assert wrong(["topics", "stats", "t", "--no-such"]) == "--no-such"
    assert wrong(["metadata", "status|adopt"]) is None
