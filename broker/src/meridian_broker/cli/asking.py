# SPDX-License-Identifier: Apache-2.0
"""Asking before something is destroyed, where somebody is there to answer."""

from __future__ import annotations

import sys

import click

from meridian_broker.cli.output import NO, say
from meridian_broker.wire.shown import shown

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask. Scripts, without a terminal, are never asked.")


def confirm(yes: bool, question: str) -> None:
    """Go on only if the person agrees. Where standard input is no terminal, nothing is asked.

    :raises SystemExit: the answer was no.
    """
    if yes or not sys.stdin.isatty() or click.confirm(shown(question), err=True):
        return
    say("nothing was changed", err=True)
    raise SystemExit(NO)
