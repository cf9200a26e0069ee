# SPDX-License-Identifier: Apache-2.0
"""The entry point of the command ``meridian``: joins the command line to what it starts.

The command line may not import this room, so the programs that build brokers are passed to it. They are imported only
when they are started: ``meridian topics list`` should not wait for an event loop and a storage engine.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meridian_broker.cli.main import build
from meridian_broker.cli.output import COULD_NOT_TELL
from meridian_broker.cli.programs import Sources, UpOptions
from meridian_broker.server.early import EarlyPorts
from meridian_broker.wire.shown import shown_lines

if TYPE_CHECKING:
    from meridian_broker.server.settings import LogLevel, Settings


class ServerPrograms:
    """The programs as this room makes them; see ``meridian_broker.cli.programs.Programs``."""

    def broker(self, sources: Sources, supervisor: int | None) -> int:
        """One broker process until SIGTERM."""
        if supervisor is not None:
            from meridian_broker.server.lifeline import die_with_parent

            die_with_parent(supervisor)
        settings = _settings(sources)
        start_logging(settings.process.log_level)
        early = _early_ports(settings)
        gc.disable()  # while modules load there is next to no garbage: looking for it takes a tenth of the start
        from meridian_broker.server.running import run_broker

        gc.enable()
        return run_broker(settings, early=early)

    def up(self, options: UpOptions, say: Callable[[str], None]) -> int:
        """Several regions as child processes."""
        from meridian_broker.server.privacy import create_for_ourselves
        from meridian_broker.server.supervisor import run_up

        create_for_ourselves()
        return run_up(options, say)

    def secure_etcd(self, sources: Sources, root_password_file: Path, say: Callable[[str], None]) -> int:
        """etcd's users and authentication, once."""
        from meridian_broker.server.secure_etcd import run_secure_etcd

        return run_secure_etcd(_settings(sources), root_password_file, say)

    def await_etcd(self, sources: Sources) -> int:
        """What a bookie waits for before it starts."""
        from meridian_broker.server.secure_etcd import run_await_etcd

        return run_await_etcd(_settings(sources))


def _settings(sources: Sources) -> Settings:
    """:raises SettingsError: a setting is unknown or has a value that it cannot have."""
    from meridian_broker.server.privacy import create_for_ourselves
    from meridian_broker.server.settings import load

    create_for_ourselves()
    return load(sources.config, sources.assignments, os.environ)


def _early_ports(settings: Settings) -> EarlyPorts:
    network = settings.network
    ports = [network.broker_service_port]
    if settings.tls.is_served:
        ports.append(settings.tls.broker_service_port_tls)
    return EarlyPorts(network.bind_address, ports)


def start_logging(level: LogLevel) -> None:
    """One line per event on standard error, times in UTC."""
    from meridian_broker.server.log_lines import LogLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def main() -> None:
    """Entry point of the installed script."""
    try:
        build(ServerPrograms())()
    except Exception as failure:
        if not isinstance(failure, _start_failures()):
            raise
        click.echo(f"Error: {shown_lines(str(failure))}", err=True)
        raise SystemExit(COULD_NOT_TELL) from None


def _start_failures() -> tuple[type[Exception], ...]:
    """Failures that the user can fix, reported without a traceback."""
    from meridian_broker.server.layout import UpFailed
    from meridian_broker.server.rank import Outranked
    from meridian_broker.server.setting_fields import SettingsError
    from meridian_broker.server.waiting import StartFailed

    return Outranked, SettingsError, StartFailed, UpFailed


if __name__ == "__main__":
    main()
