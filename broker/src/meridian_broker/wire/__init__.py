# SPDX-License-Identifier: Apache-2.0
"""Bytes <-> commands: Pulsar's frames and metadata, and the messages between regions. Pure.

Other rooms import only these modules of it::

    peer_proof  peer_requests  proto  pulsar.batches  pulsar.encode  pulsar.errors  pulsar.frames  pulsar.markers
    pulsar.metadata  pulsar.origin_fields  pulsar.topic_name  pulsar.varints  pulsar.versions  shown
"""
