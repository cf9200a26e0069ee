# SPDX-License-Identifier: Apache-2.0
"""``meridian up``, ``meridian standalone`` and ``meridian broker``, which run until they are stopped; ``meridian
secure-etcd``, which prepares etcd for them, and ``meridian await-etcd``, which lets a bookie wait for that.

This room may not import the one that builds brokers, so the programs are passed in as ``Programs``: this module
parses the options, the other one starts the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, cast

import click

MetadataKind = Literal["embedded", "etcd"]
StorageKind = Literal["local", "bookkeeper"]
BROKERS_MAX: Final = 5
"""Brokers of one region of ``meridian up``: ports of brokers are two apart, those of regions ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a broker's settings come from, apart from the environment."""

    config: Path | None
    assignments: tuple[str, ...]
    """``key=value`` each; the last of a key wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of ``meridian up``."""

    regions: tuple[str, ...]
    data_directory: Path
    metadata: MetadataKind
    base_port: int
    base_http_port: int
    base_port_tls: int = 6651
    """Used only when the settings name a certificate; so is the next one."""
    base_http_port_tls: int = 8443
    assignments: tuple[str, ...]
    """Settings that every region gets."""
    storage: StorageKind = "local"
    brokers: int = 1
    """Per region. More than one needs storage ``bookkeeper``."""
    bookies: int = 3
    """Per region, with storage ``bookkeeper``."""
    bookkeeper_jars: Path | None = None
    """Directory of BookKeeper's jars. None: where ``scripts/bookkeeper`` puts them."""


class Programs(Protocol):
    """Passed in by the composition root. Each returns the process's exit code once it is stopped or done."""

    def broker(self, sources: Sources, supervisor: int | None) -> int:
        """One broker. ``supervisor`` is the process id it must not outlive, if any."""
        ...

    def up(self, options: UpOptions, say: Callable[[str], None]) -> int:
        """Several regions, each in its own process. ``say`` prints a line for the person at the terminal."""
        ...

    def secure_etcd(self, sources: Sources, root_password_file: Path, say: Callable[[str], None]) -> int:
        """Switch on the authentication of the etcd that the settings name. Ends when that is done."""
        ...

    def await_etcd(self, sources: Sources) -> int:
        """Wait until a bookie can start with the etcd that the settings name."""
        ...


set_option = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, see docs/configuration.md. Repeatable."
)
insecure_option = click.option(
    "--insecure", is_flag=True, help="Allow connections from other machines without authentication."
)
config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of KEY=VALUE lines."
)


def region_names(text: str) -> tuple[str, ...]:
    """``a,b,c`` as three names.

    :raises click.BadParameter: a name is missing or comes twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise click.BadParameter("a region's name is missing: write NAME,NAME,...")
    if len(set(names)) != len(names):
        raise click.BadParameter("two regions have the same name")
    return names


def command(name: str, programs: Programs) -> click.Command:
    """One of the commands, bound to the program that it starts."""
    made = {
        "await-etcd": _await_etcd,
        "broker": _broker,
        "secure-etcd": _secure_etcd,
        "standalone": _standalone,
        "up": _up,
    }
    return made[name](programs)


def _all_assignments(assignments: tuple[str, ...], insecure: bool) -> tuple[str, ...]:
    return (*assignments, "insecure=true") if insecure else assignments


def _up(programs: Programs) -> click.Command:
    @click.command("up")
    @click.option(
        "--regions",
        type=region_names,
        default="us-east,us-west,eu-central",
        show_default=True,
        help="Names, separated by commas.",
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default="data",
        show_default=True,
        help="Where the regions keep their data. Start again with the same directory to continue.",
    )
    @click.option(
        "--metadata",
        type=click.Choice(["embedded", "etcd"]),
        show_default="etcd with --storage bookkeeper, else embedded",
        help="SQLite inside the data directory, or one etcd per region.",
    )
    @click.option(
        "--storage",
        type=click.Choice(["local", "bookkeeper"]),
        default="local",
        show_default=True,
        help="Messages inside the data directory, or on BookKeeper's bookies. Bookies need Java 17.",
    )
    @click.option(
        "--brokers",
        type=click.IntRange(1, BROKERS_MAX),
        default=1,
        show_default=True,
        help="Brokers per region. More than one needs --storage bookkeeper.",
    )
    @click.option("--bookies", type=click.IntRange(1, 9), default=3, show_default=True, help="Bookies per region.")
    @click.option(
        "--bookkeeper-jars",
        type=click.Path(path_type=Path, file_okay=False),
        show_default="where scripts/bookkeeper puts them",
        help="Directory of BookKeeper's jars.",
    )
    @click.option("--base-port", type=click.IntRange(1, 65535), default=6650, show_default=True, help="For clients.")
    @click.option("--base-http-port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Admin API.")
    @click.option("--base-port-tls", type=click.IntRange(1, 65535), default=6651, show_default=True, help="With TLS.")
    @click.option(
        "--base-http-port-tls", type=click.IntRange(1, 65535), default=8443, show_default=True, help="With TLS."
    )
    @set_option
    @insecure_option
    def up(
        regions: tuple[str, ...],
        data_dir: Path,
        metadata: str | None,
        storage: str,
        brokers: int,
        bookies: int,
        bookkeeper_jars: Path | None,
        base_port: int,
        base_http_port: int,
        base_port_tls: int,
        base_http_port_tls: int,
        assignments: tuple[str, ...],
        insecure: bool,
    ) -> None:
        """Run several regions on this machine that replicate to each other.

        Region i listens on base-port + 10 i and base-http-port + 10 i, and on the TLS ports when the settings name a
        certificate. The brokers of a region listen 2 ports apart. Ctrl-C or SIGTERM stops all of them.
        """
        if storage == "bookkeeper" and metadata == "embedded":
            raise click.UsageError("--storage bookkeeper needs --metadata etcd: bookies are registered there")
        if brokers > 1 and storage != "bookkeeper":
            raise click.UsageError("--brokers needs --storage bookkeeper: brokers of a region share its messages")
        options = UpOptions(
            regions=regions,
            data_directory=data_dir,
            metadata=cast("MetadataKind", metadata or ("etcd" if storage == "bookkeeper" else "embedded")),
            storage=cast("StorageKind", storage),
            brokers=brokers,
            bookies=bookies,
            bookkeeper_jars=bookkeeper_jars,
            base_port=base_port,
            base_http_port=base_http_port,
            base_port_tls=base_port_tls,
            base_http_port_tls=base_http_port_tls,
            assignments=_all_assignments(assignments, insecure),
        )
        raise SystemExit(programs.up(options, click.echo))

    return up


def _standalone(programs: Programs) -> click.Command:
    @click.command("standalone")
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default="data/standalone",
        show_default=True,
        help="Where the region keeps its data.",
    )
    @config_option
    @set_option
    @insecure_option
    def standalone(data_dir: Path, config: Path | None, assignments: tuple[str, ...], insecure: bool) -> None:
        """Run a single region, with everything in one process."""
        mine = (f"dataDirectory={data_dir}", *_all_assignments(assignments, insecure))
        sources = Sources(config=config, assignments=mine)
        raise SystemExit(programs.broker(sources, None))

    return standalone


def _broker(programs: Programs) -> click.Command:
    @click.command("broker")
    @config_option
    @set_option
    @insecure_option
    @click.option("--supervisor", type=int, hidden=True, help="Process id that this process must not outlive.")
    def broker(config: Path | None, assignments: tuple[str, ...], insecure: bool, supervisor: int | None) -> None:
        """Run one broker. SIGTERM shuts it down gracefully."""
        sources = Sources(config=config, assignments=_all_assignments(assignments, insecure))
        raise SystemExit(programs.broker(sources, supervisor))

    return broker


def _secure_etcd(programs: Programs) -> click.Command:
    @click.command("secure-etcd")
    @config_option
    @set_option
    @click.option(
        "--root-password-file",
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the password of etcd's user root. Brokers do not need it.",
    )
    def secure_etcd(config: Path | None, assignments: tuple[str, ...], root_password_file: Path) -> None:
        """Switch on authentication in a region's etcd.

        The settings are those of the region's broker. Creates etcd's user root, and metadataStoreUser with the password
        in metadataStorePasswordFile, which may access the brokers' keys only. Run it again to change that password.
        """
        sources = Sources(config=config, assignments=assignments)
        raise SystemExit(programs.secure_etcd(sources, root_password_file, click.echo))

    return secure_etcd


def _await_etcd(programs: Programs) -> click.Command:
    @click.command("await-etcd")
    @config_option
    @set_option
    def await_etcd(config: Path | None, assignments: tuple[str, ...]) -> None:
        """Wait until a region's etcd is prepared for bookies.

        `meridian secure-etcd` does that, with managedLedgerStorage=bookkeeper. The settings name etcd, and the
        certificate by which the bookie will log in.
        """
        raise SystemExit(programs.await_etcd(Sources(config=config, assignments=assignments)))

    return await_etcd
