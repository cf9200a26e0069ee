# SPDX-License-Identifier: Apache-2.0
"""A region records who asked for a write of shared metadata, so a conflict that the write loses can say so (R45)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from meridian_broker.cli.metadata import metadata
from meridian_broker.metadata import keys
from meridian_broker.metadata.sync.events import Changes, Event
from meridian_broker.metadata.sync.stamped import Stamped, canonical
from meridian_broker.positions.clock import Stamp
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.brokers.guarded_regions import tokens_command
from support.contracts.metadata_contract import wait_until

TOPIC = "persistent://public/default/metadata-events"


async def test_a_conflict_names_the_role_whose_write_was_lost(tmp_path: Path) -> None:
    key, secret, shown = tmp_path / "first.key", tmp_path / "secret", tmp_path / "token"
    tokens_command("create-secret-key", str(key))
    secret.write_text("s" * 40, encoding="utf-8")
    secret.chmod(0o600)
    shown.write_text(tokens_command("create", "--secret-key", str(key), "--subject", "ann").strip(), encoding="utf-8")
    shown.chmod(0o600)
    async with broker_inside(
        tmp_path / "data",
        metadataSyncEventTopic=TOPIC,
        peerTokenFile=secret,
        metadataSyncScopes="tenants",
        authenticationEnabled="true",
        tokenSecretKey=f"file://{key}",
        superUserRoles="ann",
    ) as broker:

        async def ask(method: str, path: str, body: Any = ...) -> Any:
            headers = {"Authorization": f"Bearer {shown.read_text(encoding='utf-8')}"}
            url = f"{broker.listeners.admin_url}{path}"
            answer = await asyncio.to_thread(http, method, url, body, headers=headers)
            assert answer.status < 300, answer.text
            return answer.json if answer.text else None

        await ask("PUT", "/admin/v2/clusters/ap", {"serviceUrl": "http://127.0.0.1:9"})
        tenant = {"adminRoles": [], "allowedClusters": ["inside", "ap"]}
        await ask("POST", "/admin/v2/tenants/public", tenant)
        await ask("POST", "/admin/v2/namespaces/public/default/replication", ["inside", "ap"])
        await ask("PUT", "/admin/v2/tenants/shop", tenant)
        await wait_until(
            lambda: broker.metadata_sync.session is not None and "ap" in broker.metadata_sync.session.regions()
        )
        session = broker.metadata_sync.session
        assert session is not None
        later = Stamp(broker.scheduler.now_ms() + 1000, 0, "ap")
        event = Event(keys.tenant("shop"), Stamped(later, canonical({"deleting": True})))
        await session.applier.apply(Changes("ap", (event,)))
        await wait_until(lambda: bool(session.kept.conflicts))
        (found,) = (await ask("GET", "/meridian/v1/metadata/conflicts"))["conflicts"]
        assert (found["lost"]["region"], found["lost"]["caller"]) == ("inside", "ann")
        assert "caller" not in found["won"]
        told = await asyncio.to_thread(
            CliRunner().invoke,
            metadata,
            ["conflicts", "--url", broker.listeners.admin_url, "--token-file", str(shown)],
        )
        assert "of inside, which ann had asked for" in told.output
