# SPDX-License-Identifier: Apache-2.0
"""The entry point of the command ``meridian``: joins the command line to what it starts.

The command line may not import this room, so the programs that build brokers are handed to it. They are imported when
they are started and not before: ``meridian topics list`` should not wait for an event loop and a storage engine.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from meridian_broker.cli.main import build
from meridian_broker.cli.output import COULD_NOT_TELL
from meridian_broker.cli.programs import Sources, UpOptions
from meridian_broker.server.log_lines import LogLines
from meridian_broker.server.privacy import create_for_ourselves
from meridian_broker.server.settings import LogLevel, SettingsError, load
from meridian_broker.wire.shown import shown_lines


class ServerPrograms:
    """The programs as this room makes them; see ``meridian_broker.cli.programs.Programs``."""

    def broker(self, sources: Sources, supervisor: int | None) -> int:
        """One broker process until SIGTERM."""
        if supervisor is not None:
            from meridian_broker.server.lifeline import die_with_parent

            die_with_parent(supervisor)
        create_for_ourselves()
        settings = load(sources.config, sources.assignments, os.environ)
        start_logging(settings.process.log_level)
        gc.disable()  # while modules load there is next to no garbage: looking for it takes a tenth of the start
        from meridian_broker.server.broker import run_broker

        gc.enable()
        return run_broker(settings)

    def up(self, options: UpOptions, say: Callable[[str], None]) -> int:
        """Several regions as child processes."""
        from meridian_broker.server.supervisor import run_up

        create_for_ourselves()
        return run_up(options, say)

    def secure_etcd(self, sources: Sources, root_password_file: Path, say: Callable[[str], None]) -> int:
        """etcd's users and authentication, once."""
        create_for_ourselves()
        settings = load(sources.config, sources.assignments, os.environ)
        from meridian_broker.server.secure_etcd import run_secure_etcd

        return run_secure_etcd(settings, root_password_file, say)


def start_logging(level: LogLevel) -> None:
    """One line per event on standard error, times in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def main() -> None:
    """What the installed script calls."""
    from meridian_broker.server.layout import UpFailed
    from meridian_broker.server.rank import Outranked
    from meridian_broker.server.waiting import StartFailed

    try:
        build(ServerPrograms())()
    except (Outranked, SettingsError, StartFailed, UpFailed) as error:
        click.echo(f"meridian: {shown_lines(str(error))}", err=True)
        raise SystemExit(COULD_NOT_TELL) from None


if __name__ == "__main__":
    main()
