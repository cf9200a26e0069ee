# SPDX-License-Identifier: Apache-2.0
"""Regions of one broker each that replicate to each other, each with a metadata store of the test's choice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from support.brokers.broker_process import BrokerProcess
from support.brokers.free_ports import free_port


def started(
    directory: Path, stores: Mapping[str, str | None], settings: Mapping[str, str], stack: contextlib.ExitStack
) -> dict[str, BrokerProcess]:
    """Start all regions, and wait until they are healthy. ``stack`` ends them.

    :param stores: by region, the URL of its store; None: embedded.
    """
    ports = {name: (free_port(), free_port()) for name in stores}
    listed = [
        {"name": name, "service_url": f"pulsar://127.0.0.1:{port}", "admin_url": f"http://127.0.0.1:{http_port}"}
        for name, (port, http_port) in ports.items()
    ]
    regions_file, secret = directory / "regions.json", directory / "peer.secret"
    regions_file.write_text(json.dumps({"regions": listed}), encoding="utf-8")
    secret.write_text("s" * 40, encoding="utf-8")
    secret.chmod(0o600)
    brokers = {
        name: BrokerProcess(
            name,
            directory / name,
            settings=settings,
            port=port,
            http_port=http_port,
            regions_file=regions_file,
            peer_token_file=secret,
            metadata_url=stores[name],
        )
        for name, (port, http_port) in ports.items()
    }
    for one in brokers.values():
        one.start(wait=False)
        stack.callback(one.kill)
    for one in brokers.values():
        one.wait_healthy()
    return brokers
