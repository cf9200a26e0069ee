# SPDX-License-Identifier: Apache-2.0
"""Limits of the Pulsar protocol side, each with its reason."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
"""Largest message a client may publish: Pulsar's default for ``maxMessageSize``, announced in CONNECTED."""

FRAME_PADDING_BYTES: Final = 10 * 1024
"""What a frame may add to its message for the command and the sizes; the number Pulsar uses."""

MAX_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES
"""Largest frame, counted without its own size field. A larger one ends the connection."""

VARINT_CACHE_ENTRIES: Final = 1024
"""Ledger ids (nine bytes of varint) whose encoding is remembered; a connection meets few at a time."""

PROTOCOL_VERSION: Final = 21
"""The newest version of the protocol whose commands ``pulsar.proto`` holds."""

PEER_PROTOCOL_VERSION: Final = 1
"""Version of the exchange between Meridian regions (``peer.proto``), announced in ``FeatureFlags``."""

MAX_TOPIC_NAME_CHARACTERS: Final = 2048
"""Far above any real name, and small enough for keys of the metadata store and for log lines."""
