# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper engine: ledgers on Apache BookKeeper's bookies, with their metadata in the region's etcd.

It implements BookKeeper's wire protocol. The core is pure and knows no sockets, clocks or tasks (`.importlinter`):

    packets, entries, ledger_metadata   bytes <-> values
    ports                               what the core asks of its shell
    places                              what one bookie of an ensemble was sent, and what it has acknowledged
    adding                              adds a ledger's entries to an ensemble: windows, quorums, lost bookies
    updating                            one compare-and-set of a ledger's metadata, until its outcome is known
    writing                             the writer of a ledger: adding, ensemble changes, sealing
    recovering                          fences, finds the last entry, re-adds what may be confirmed, and seals
    zones                               which bookies to choose so that copies are in several zones
    reading                             reads entries from any bookie, from a second one when the first is slow

The shell around it:

    certificates, securing              plain and encrypted connections
    connection, bookies                 sockets, registrations, time
    ledger_table                        the ledgers and bookies registered in etcd
    lac                                 version 3 requests that read and write the last confirmed entry (LAC)
    context                             what all parts of the store share
    handles, recoveries, confirmed      writers and readers; recoveries under way; the LAC of open ledgers
    tailing                             ends of ledgers that are read while another broker writes them
    upkeep                              counts ledgers, removes old tombstones
    store                               implements the port
    registered                          what bookies need in etcd before they start, and which are registered
    outside, description                ledgers read by another process, and what it needs to find them
"""
