# SPDX-License-Identifier: Apache-2.0
"""Every setting of a broker, in one tree of small frozen classes, and the one place where settings are read.

A key is spelled as in Pulsar's ``broker.conf`` if Pulsar has the setting, else in camelCase. The Python attribute is
the same name in snake_case. A value comes from the first of these that has it:

1. ``--set key=value`` on the command line,
2. the environment variable ``MERIDIAN_<key>``, for example ``MERIDIAN_clusterName``,
3. the file given by ``--config``, one ``key=value`` per line, ``#`` begins a comment line,
4. the default below.

An unknown key is an error that names the nearest one, because a misspelt limit that is silently ignored is found
at the worst moment. Nothing else in the broker reads the environment. The sentence under each field is its
documentation: ``docs/configuration.md`` is generated from it, and a test notices when the two differ.

``python -m meridian_broker.server.settings_page`` prints that page.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.setting_fields import whole as _int
from meridian_broker.server.settings_authentication import AuthenticationSettings
from meridian_broker.server.settings_backlog import BacklogSettings
from meridian_broker.server.settings_brokers import BrokerSettings
from meridian_broker.server.settings_limits import LimitSettings
from meridian_broker.server.settings_metadata import MetadataSettings
from meridian_broker.server.settings_network import NetworkSettings, check_bind_address, check_listeners
from meridian_broker.server.settings_offload import OffloadSettings
from meridian_broker.server.settings_removal import RemovalSettings
from meridian_broker.server.settings_replication import ReplicationSettings
from meridian_broker.server.settings_storage import StorageSettings
from meridian_broker.server.settings_tls import TlsSettings
from meridian_broker.server.settings_topics import TopicSettings

__all__ = [
    "BY_KEY",
    "SECTIONS",
    "Given",
    "LogLevel",
    "Setting",
    "Settings",
    "SettingsError",
    "collect",
    "load",
    "unknown",
]

ENVIRONMENT_PREFIX: Final = "MERIDIAN_"

Given = Mapping[str, tuple[str, str]]
"""Key -> its text and the source to name in an error."""

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSettings:
    """The region's identity, and where it keeps its data."""

    cluster_name: str = "standalone"
    """Name of this region. Pulsar's API calls it cluster. It becomes part of every message's origin, so it never
    changes in the life of a data directory. Letters, digits, `-`, `_` and `.`, at most 64."""

    data_directory: Path = Path("data/standalone")
    """Directory of the message log and, when the metadata store is embedded, of the metadata. Created if missing."""

    metadata_store_url: str = ""
    """Where the region's metadata is kept: `sqlite:PATH` (embedded) or `etcd:http://HOST:PORT`, with `https` for TLS
    and with commas between several members: `etcd:https://a:2379,https://b:2379`. Never with a password in it: see
    `metadataStoreUser`. Empty means `metadata.sqlite` inside the data directory. Every region has its own store."""

    regions_file: Path | None = None
    """A JSON file `{"regions": [{"name", "service_url", "admin_url"}, ...]}` that lists every region, this one
    included; with TLS also `service_url_tls` and `admin_url_tls`. On start, the broker creates a cluster for each, and
    tenant `public` with namespace `public/default` replicated to all. Empty: the same for this region alone. The broker
    connects to clusters created through the admin API over TLS only (`brokerClientTlsEnabled`)."""

    peer_token_file: Path | None = None
    """File with the secret by which the brokers of all regions authenticate each other, at least 32 bytes, the same in
    every region. `meridian tokens create-peer-secret` makes one. Make it readable by the broker's user only. Required
    when `regionsFile` names other regions; when empty, no broker is accepted as a peer and nothing is replicated. While
    the secret is being changed, the file has two lines, the new one first, and regions that know both use it
    (docs/security.md). The file is read again when it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The process itself."""

    log_level: LogLevel = "info"
    """Minimum level of log lines. The log is standard error."""

    fault_injection_enabled: bool = False
    """For testing the verification: enables admin calls that lose messages on purpose. Never set it where messages
    matter."""

    start_timeout_seconds: int = _int(60, 0, 3600)
    """How long, in seconds, a starting broker waits for its metadata store to answer, and for an earlier broker to
    release its volume. After that it exits and says which of them it waited for."""

    broker_shutdown_timeout_ms: int = _int(60_000, 0, 3_600_000, dynamic=True)
    """Longest time, in milliseconds, that the broker takes after SIGTERM to hand over and store open work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one broker process."""

    region: RegionSettings = field(default_factory=RegionSettings)
    brokers: BrokerSettings = field(default_factory=BrokerSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    backlog: BacklogSettings = field(default_factory=BacklogSettings)
    removal: RemovalSettings = field(default_factory=RemovalSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    offload: OffloadSettings = field(default_factory=OffloadSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)

    def __post_init__(self) -> None:
        """Check the rules between settings.

        :raises SettingsError: some keys do not go together; it names them.
        """
        if not re.fullmatch(r"[A-Za-z0-9][-_.A-Za-z0-9]{0,63}", self.region.cluster_name):
            raise SettingsError(
                f"clusterName={self.region.cluster_name!r}: expected a letter or digit and then at most 63 letters, "
                "digits, '-', '_' or '.'"
            )
        self.brokers.check()
        self.metadata.check(self.region.metadata_store_url, has_peer_secret=self.region.peer_token_file is not None)
        self.storage.check(self.region.metadata_store_url)
        self.offload.check()
        open_to_all = not (self.network.insecure or self.authentication.authentication_enabled)
        check_bind_address(self.network, loopback_only=open_to_all)
        self.tls.check()
        check_listeners(self.network, tls=self.tls.is_served, loopback_only=open_to_all)
        self.authentication.check()

    @property
    def metadata_store_url(self) -> str:
        """The metadata store's URL with the default filled in."""
        return self.region.metadata_store_url or f"sqlite:{self.region.data_directory / 'metadata.sqlite'}"

    @property
    def advertised_address(self) -> str:
        """The address for clients, with the default filled in."""
        return self.network.advertised_address or self.network.bind_address

    @classmethod
    def of(cls, pairs: Mapping[str, str], source: str = "settings") -> Self:
        """Settings from ``key -> text``; absent keys have their defaults. ``source`` names the pairs in errors.

        :raises SettingsError: unknown key, wrong type, out of bounds, or keys that do not go together.
        """
        return cls.build({key: (value, source) for key, value in pairs.items()})

    @classmethod
    def build(cls, given: Given) -> Self:
        """Settings from collected keys.

        :raises SettingsError: as ``of``.
        """
        sections: dict[str, dict[str, Any]] = {}
        for key, (text, source) in given.items():
            setting = BY_KEY.get(key)
            if setting is None:
                raise SettingsError(unknown(key, source))
            sections.setdefault(setting.section, {})[setting.attribute] = setting.parse(text, source)
        return cls(**{name: SECTIONS[name](**values) for name, values in sections.items()})

    def pairs(self) -> dict[str, str]:
        """Every key with its value as text, as ``of`` reads it. No value of a setting is a secret."""
        return {
            key: setting.text(getattr(getattr(self, setting.section), setting.attribute))
            for key, setting in BY_KEY.items()
        }


def load(config: Path | None, assignments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of this process, from a file, ``--set`` assignments and the environment.

    :raises SettingsError: the file cannot be read, or something in one of the three cannot be used.
    """
    return Settings.build(collect(config, assignments, environment))


def collect(config: Path | None, assignments: Sequence[str], environment: Mapping[str, str]) -> Given:
    """Keys from the three sources, the stronger overriding the weaker, before they are checked.

    :raises SettingsError: the file cannot be read, or a line of it or an assignment is not ``key=value``.
    """
    given: dict[str, tuple[str, str]] = {}
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the configuration file {config}: {error}") from error
        given.update(_parse_properties(text.splitlines(), str(config)))
    given.update(_from_environment(environment))
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: expected key=value")
        given[key.strip()] = (value.strip(), "--set")
    return given


def _parse_properties(lines: Iterable[str], source: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise SettingsError(f"{source}:{number}: expected key=value, found {line!r}")
        found[key.strip()] = (value.strip(), f"{source}:{number}")
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Settings among the environment's variables.

    Names without a small letter after the prefix are left alone: ``MERIDIAN_URL`` belongs to the command line, and
    Kubernetes adds names like ``MERIDIAN_BROKER_SERVICE_HOST`` to every container beside a Service of that name.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, value in environment.items():
        key = name.removeprefix(ENVIRONMENT_PREFIX)
        if key != name and (key in BY_KEY or not key.isupper()):
            found[key] = (value, f"environment variable {name}")
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: where it lives in the tree and how its text is read."""

    key: str
    section: str
    attribute: str
    kind: Any
    default: Any
    minimum: int | None
    maximum: int | None
    is_dynamic: bool
    """It can be changed while brokers run."""

    def parse(self, text: str, source: str) -> Any:
        value = self._convert(text)
        if value is None and not (text == "" and self.kind == Path | None):
            raise SettingsError(f"{source}: {self.key}={text!r}: expected {self.expected()}")
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower())
        if self.kind is int:
            if not re.fullmatch(r"-?\d{1,18}", text):
                return None
            number = int(text)
            return number if self._within(number) else None
        if typing.get_origin(self.kind) is Literal:
            return text if text in typing.get_args(self.kind) else None
        if self.kind is str:
            return text
        return Path(text) if text else None

    def _within(self, number: int) -> bool:
        return (self.minimum is None or number >= self.minimum) and (self.maximum is None or number <= self.maximum)

    def expected(self) -> str:
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            return f"a whole number from {self.minimum} to {self.maximum}"
        if typing.get_origin(self.kind) is Literal:
            return " or ".join(typing.get_args(self.kind))
        return "a path" if self.kind in (Path, Path | None) else "text"

    def text(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)


def _camel(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


SECTIONS: Final[dict[str, type]] = typing.get_type_hints(Settings)


def _all_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for section, holder in SECTIONS.items():
        hints = typing.get_type_hints(holder)
        for item in dataclasses.fields(holder):
            key = item.metadata.get("key") or _camel(item.name)
            found[key] = Setting(
                key=key,
                section=section,
                attribute=item.name,
                kind=hints[item.name],
                default=item.default,
                minimum=item.metadata.get("minimum"),
                maximum=item.metadata.get("maximum"),
                is_dynamic=item.metadata.get("dynamic", False),
            )
    return found


BY_KEY: Final[Mapping[str, Setting]] = _all_settings()


def unknown(key: str, source: str) -> str:
    """The sentence for a key that no setting has, with the nearest one."""
    lowered = {known.lower(): known for known in BY_KEY}
    nearest = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[nearest[0]]}?" if nearest else "see docs/configuration.md for all keys"
    return f"{source}: there is no setting {key!r}: {hint}"
