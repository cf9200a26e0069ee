# SPDX-License-Identifier: Apache-2.0
"""The file that lists every region (``regionsFile``), read once, when a broker starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from meridian_broker.gateway.addresses import of_several
from meridian_broker.metadata.records import KINDS, MERIDIAN, ClusterRecord
from meridian_broker.server.setting_fields import SettingsError
from meridian_broker.server.settings import Settings

REQUIRED: Final = ("name", "service_url", "admin_url")


def listed_regions(settings: Settings) -> dict[str, ClusterRecord]:
    """The regions of ``regionsFile`` by name; empty when that is not set.

    :raises SettingsError: the file cannot be used, or it names other regions and there is no peer secret.
    """
    file = settings.region.regions_file
    if file is None:
        return {}
    listed = clusters_in(file)
    others = sorted(name for name, one in listed.items() if name != settings.region.cluster_name and not one.is_pulsar)
    if others and settings.region.peer_token_file is None:
        raise SettingsError(
            f"regionsFile: {file} names {', '.join(others)}: set peerTokenFile too, the same in all regions "
            "(`meridian tokens create-peer-secret FILE` creates it). Without it, regions do not connect"
        )
    return listed


def clusters_in(file: Path) -> dict[str, ClusterRecord]:
    """Each listed region, by name.

    :raises SettingsError: the file cannot be read, lists no regions, or one of them lacks a field.
    """
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"regionsFile: {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"regionsFile: {file} is not JSON: {error}") from None
    regions = listed.get("regions") if isinstance(listed, dict) else None
    if not isinstance(regions, list):
        raise SettingsError(f'regionsFile: {file} has no list "regions"')
    return dict(_cluster(file, number, region) for number, region in enumerate(regions, 1))


def _cluster(file: Path, number: int, region: Any) -> tuple[str, ClusterRecord]:
    given = region if isinstance(region, dict) else {}
    missing = [key for key in REQUIRED if not isinstance(given.get(key), str)]
    if missing:
        raise SettingsError(f"regionsFile: region {number} in {file} has no {' and no '.join(missing)}")
    kind = given.get("kind", MERIDIAN)
    if kind not in KINDS:
        raise SettingsError(f"regionsFile: region {number} in {file} is of kind {kind!r}: use {' or '.join(KINDS)}")
    role = given.get("replicator_role", "")
    if not isinstance(role, str):
        raise SettingsError(f"regionsFile: replicator_role of region {number} in {file} is not a valid role name")
    return given["name"], ClusterRecord(
        kind=kind,
        replicator_role=role,
        service_url=_of_all(given, "admin_url"),
        service_url_tls=_of_all(given, "admin_url_tls"),
        broker_service_url=_of_all(given, "service_url"),
        broker_service_url_tls=_of_all(given, "service_url_tls"),
    )


def _of_all(region: dict[str, Any], key: str) -> str:
    """An address of the region, with those of its other brokers where they are listed."""
    listed = region.get("brokers")
    brokers = [one[key] for one in listed if isinstance(one, dict) and one.get(key)] if isinstance(listed, list) else []
    return of_several(url for url in (region.get(key, ""), *brokers) if url)
