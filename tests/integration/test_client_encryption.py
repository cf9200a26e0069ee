# SPDX-License-Identifier: Apache-2.0
"""What clients encrypt stays encrypted on disk, in another region and without the key. Others get it whole."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.brokers.broker_process import RegionsProcess
from support.brokers.region_clients import PATIENCE_MS

REGIONS = ("east", "west")

SECRET = b"nobody else may read this"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    directory = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    (directory / "public").write_bytes(
        private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    (directory / "private").write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pulsar.CryptoKeyReader(str(directory / "public"), str(directory / "private"))


def connect(regions: RegionsProcess, region: str) -> pulsar.Client:
    # The client logs an error for what it cannot decrypt; that is not an error of this test.
    return pulsar.Client(regions.service_url(region), logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))


@pytest.mark.parametrize("shape", ["single", "batch", "chunks"])
def test_only_the_key_decrypts_it(regions: RegionsProcess, keys: pulsar.CryptoKeyReader, shape: str) -> None:
    topic = f"closed-{shape}"
    east, west = connect(regions, "east"), connect(regions, "west")
    consumer = west.subscribe(topic, "s", crypto_key_reader=keys, initial_position=pulsar.InitialPosition.Earliest)
    shapes: dict[str, dict[str, Any]] = {
        "single": {"batching_enabled": False},
        "batch": {"batching_enabled": True, "batching_max_publish_delay_ms": 100},
        "chunks": {"batching_enabled": False, "chunking_enabled": True},
    }
    size = (6 << 20) if shape == "chunks" else 0
    bodies = [SECRET + b"%d" % number + bytes(size) for number in range(2 if size else 10)]
    producer = east.create_producer(topic, encryption_key="ours", crypto_key_reader=keys, **shapes[shape])
    for body in bodies:
        producer.send_async(body, lambda *_: None)
    producer.flush()
    assert [consumer.receive(PATIENCE_MS).data() for _ in bodies] == bodies, "whole and in order, in the other region"

    if shape != "chunks":  # the client kills its own process over chunks that it cannot decrypt
        stranger = west.subscribe(
            topic,
            "stranger",
            initial_position=pulsar.InitialPosition.Earliest,
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
        )
        assert SECRET not in stranger.receive(PATIENCE_MS).data()
    for client in (east, west):
        client.close()
    for region in regions.regions:
        stored = [path for path in (regions.data_dir / region).rglob("*") if path.is_file()]
        assert stored
        assert not any(SECRET in path.read_bytes() for path in stored)
