# SPDX-License-Identifier: Apache-2.0
"""Where clients authenticate, an Apache Pulsar region's brokers are recognised by their role."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from meridian_broker.bounds.clients import MESSAGE_BYTES
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.brokers.free_ports import free_port
from support.brokers.guarded_regions import shown_by, tokens_command
from support.protocol.raw_connection import T

TOPIC = "persistent://shop/orders/guarded"
REPLICATOR: dict[str, Any] = {"producer_name": "pulsar.repl.apache-->inside", "user_provided_producer_name": True}
APACHE = {
    "serviceUrl": "http://127.0.0.1:9",
    "brokerServiceUrl": "pulsar://127.0.0.1:9",
    "kind": "pulsar",
    "replicatorRole": "brokers-of-apache",
}


async def test_only_its_role_may_replicate_and_exceed_the_message_size_by_its_additions(tmp_path: Path) -> None:
    key, port = tmp_path / "first.key", free_port()
    tokens_command("create-secret-key", str(key))

    def token(role: str) -> str:
        return tokens_command("create", "--secret-key", str(key), "--subject", role).strip()

    async with broker_inside(
        tmp_path / "data",
        brokerServicePort=port,
        authenticationEnabled="true",
        tokenSecretKey=f"file://{key}",
        superUserRoles="ann",
    ) as broker:

        async def put(path: str, body: Any) -> None:
            headers = {"Authorization": f"Bearer {token('ann')}"}
            url = f"{broker.listeners.admin_url}/admin/v2/{path}"
            answer = await asyncio.to_thread(http, "PUT", url, body, headers=headers)
            assert answer.status == 204, answer.text

        await put("clusters/apache", APACHE)
        await put("tenants/shop", {"allowedClusters": ["inside", "apache"]})
        await put("namespaces/shop/orders", {"replication_clusters": ["inside", "apache"]})
        ann, connected = await shown_by(port, token("ann"))
        assert connected.message.max_message_size == MESSAGE_BYTES
        ann.ask_producer(TOPIC, 1, **REPLICATOR)
        refused = await ann.hear(T.ERROR)
        assert refused.error == pb.NotAllowedError and "'ann' may not replicate messages of apache" in refused.message
        theirs, connected = await shown_by(port, token("brokers-of-apache"))
        added = connected.message.max_message_size - MESSAGE_BYTES
        assert added > 0
        await theirs.producer(TOPIC, **REPLICATOR)
        said = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, replicated_from="apache")
        said.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value="3:1")
        rest = MESSAGE_BYTES + added - said.ByteSize() - 14  # sizes and checksum
        theirs.send_body(1, metadata.build_body(said.SerializeToString(), bytes(rest)))
        await theirs.receipt()
        for one in (ann, theirs):
            await one.close()
