# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper engine: ledgers on Apache BookKeeper's bookies, their metadata in the region's etcd.

A client of BookKeeper's wire protocol. The core is pure and knows no sockets, clocks or tasks (`.importlinter`):

    packets, entries, ledger_metadata   bytes <-> values
    ports                               what the core asks of its shell
    places                              what one bookie of an ensemble was sent, and what it has
    adding                              one ledger's entries to an ensemble: windows, quorums, lost bookies
    updating                            one change of a ledger's metadata: compare and set until the outcome is known
    writing                             the writer of a ledger: adding, replacing bookies, sealing
    recovering                          fence, find the last entry that may be confirmed, seal
    reading                             entries from whichever bookie has them, a second one when the first is slow

The shell around it:

    certificates, securing              plain and encrypted connections
    connection, bookies                 sockets, registrations, time
    ledger_table                        etcd's table of ledgers and bookies
    lac                                 requests of version 3 of the protocol, about last confirmed entries
    context                             what all parts of the store share
    handles, recoveries, confirmed      writers and readers; who ends a ledger; how far those came that stay open
    upkeep                              counts ledgers, forgets those that were deleted long ago
    store                               implements the port
    registered                          for whoever starts bookies: what they need in etcd, and whether they are there
    outside, description                ledgers that another process reads, and what it has to know
"""
