# SPDX-License-Identifier: Apache-2.0
"""Limits on client commands of the Pulsar protocol.

`topics/validation.py` checks each command against these before it takes effect.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.bounds.units import Bytes, Characters, Chunks, Clients, Epochs, Ids, Messages, Milliseconds, Words

# -- frames and commands

MESSAGE_BYTES: Final[Bytes] = 5 << 20
"""Default of `maxMessageSize`, and Pulsar's: metadata and payload of one message."""

FRAME_PADDING_BYTES: Final[Bytes] = 10 << 10
"""Room in a frame for the command and the sizes beside the message; the number Pulsar uses."""

FRAME_BYTES: Final[Bytes] = MESSAGE_BYTES + FRAME_PADDING_BYTES
"""A frame without its own size field. A larger one ends the connection."""

FIRST_FRAME_BYTES: Final[Bytes] = 128 << 10
"""A frame before CONNECT, which carries credentials at most."""

# -- SEND

MESSAGE_METADATA_BYTES: Final[Bytes] = 64 << 10
"""Metadata of one message, including its properties and key. It is read on the event loop, field by field."""

BATCH_MESSAGES: Final[Messages] = 1 << 16
"""Messages in one batch. Clients send 1000 by default. A partial acknowledgement costs a bit for each of them in every
region."""

BATCHED_MESSAGE_BYTES: Final[Bytes] = 6
"""The least that one message takes in an uncompressed batch: a size of four bytes and one field of metadata. A batch
that names more messages than its bytes can hold is refused."""

UNCOMPRESSED_BYTES: Final[Bytes] = 64 << 20
"""Uncompressed size that a payload may name, chunks of a larger message excepted: consumers and compaction
allocate memory for it. Never less than `maxMessageSize`."""

LATEST_TIME_MS: Final[Milliseconds] = 253_402_300_799_999
"""The last millisecond of the year 9999: publish time, event time and delivery time. Later ones have no date in most
languages."""

REPLICATE_TO_BYTES: Final[Bytes] = 32 << 10
"""Names of the regions that a message is limited to, all together. They are in the header of the stored entry, which
has room for 64 KiB."""

CHUNKS: Final[Chunks] = 100_000
"""Pieces of one large message: half a terabyte of the largest ones."""

# -- ACK

ACK_IDS: Final[Ids] = 10_000
"""Message ids in one ACK; each takes some microseconds of the event loop. Clients group 1000."""

ACK_SET_WORDS: Final[Words] = 1 << 14
"""64-bit words of the set that acknowledges a batch in part: enough for the largest batch that any version stored."""

ACK_WORDS: Final[Words] = 1 << 16
"""The same for all sets of one ACK. Clients group 1000 ids; with sets of 1000 messages each that is a quarter of it."""

# -- names and properties

NAME_BYTES: Final[Bytes] = 1 << 10
"""Name of a subscription, producer or consumer, or the id that the chunks of a message share. Names are in records of
every region and in labels of metrics."""

TOPIC_NAME_CHARACTERS: Final[Characters] = 2048
"""A topic's full name: small enough for keys of the metadata store and for log lines."""

CLIENT_PROPERTIES_BYTES: Final[Bytes] = 16 << 10
"""Keys and values of a producer's or consumer's metadata. They stay in memory, and every stats answer repeats them."""

SUBSCRIPTION_PROPERTIES_BYTES: Final[Bytes] = 64 << 10
"""Keys and values of a subscription's properties. Six times as much, escaped, still fits into a frame between
regions."""

CLIENTS_PER_CONNECTION: Final[Clients] = 10_000
"""Producers and consumers of one connection."""

# -- rates

RATE_DEBT_MS: Final[Milliseconds] = 20_000
"""Longest time for which a rate delays clients because of what was published or sent before, or one period of the rate
if that is longer. Clients give up on a message after 30 seconds by default."""

# -- PRODUCER

EPOCH_LEAP: Final[Epochs] = 1 << 20
"""How far the epoch that an exclusive producer names may be ahead of its topic's, whose record may have been
restored from an older copy. An epoch further ahead was never issued."""
