# SPDX-License-Identifier: Apache-2.0
"""The generated protobuf code is what ``broker/generate-proto`` generates from the ``.proto`` files today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb

ROOT = Path(__file__).parents[3]
HERE = Path("meridian_broker/wire/proto")


def test_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "broker/generate-proto", tmp_path], check=True, env=environment)
    checked_in = {path.name: path.read_text() for path in (ROOT / "broker/src" / HERE).glob("*_pb2.py*")}
    fresh = {path.name: path.read_text() for path in (tmp_path / HERE).iterdir()}
    assert sorted(checked_in) == sorted(fresh)
    stale = [name for name in fresh if fresh[name] != checked_in[name]]
    assert not stale, f"{', '.join(stale)} differ from the .proto files: run broker/generate-proto"


def test_our_fields_stay_clear_of_the_protocols() -> None:
    """Field numbers of the Pulsar protocol stay far below ours, so they cannot be confused."""
    ours = {"peer_protocol_version", "origin", "replication", "replication_source"}
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            mine = field.name in ours or (field.message_type is not None and "peer" in field.message_type.full_name)
            assert (field.number >= 1000) == mine, field.full_name


def test_numbers_that_must_never_change() -> None:
    """Spot checks against the shipped protocol; the real client proves the rest (tests/integration)."""
    fields = pb.MessageMetadata.DESCRIPTOR.fields_by_name
    wanted = {"replicated_from": 5, "replicate_to": 7, "num_messages_in_batch": 11, "schema_version": 16}
    wanted |= {"ordering_key": 18, "deliver_at_time": 19, "marker_type": 20, "chunk_id": 29}
    assert {name: fields[name].number for name in wanted} == wanted
