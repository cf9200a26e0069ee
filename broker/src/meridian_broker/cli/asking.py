# SPDX-License-Identifier: Apache-2.0
"""Asks for confirmation before something is destroyed, if a person can answer."""

from __future__ import annotations

import sys

import click

from meridian_broker.cli.output import NO, say
from meridian_broker.wire.shown import shown

yes_option = click.option(
    "-y", "--yes", is_flag=True, help="Do not ask. Without a terminal, as in scripts, nothing is asked."
)


def confirm(yes: bool, question: str) -> None:
    """Continue only if the user agrees. If standard input is not a terminal, there is no question.

    :raises SystemExit: the answer was no.
    """
    if yes or not sys.stdin.isatty() or click.confirm(shown(question), err=True):
        return
    say("nothing was changed", err=True)
    raise SystemExit(NO)
