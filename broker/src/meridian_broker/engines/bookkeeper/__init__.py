# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper engine: ledgers on Apache BookKeeper's bookies, their metadata in the region's etcd.

A client of BookKeeper's wire protocol. The core is pure and knows no sockets, clocks or tasks (`.importlinter`):

    packets, entries, ledger_metadata   bytes <-> values
    ports                               what the core asks of its shell
    adding                              one ledger's entries to an ensemble: windows, quorums, lost bookies
    updating                            one change of a ledger's metadata: compare and set until the outcome is known
    writing                             the writer of a ledger: adding, replacing bookies, sealing
    recovering                          fence, find the last entry that may be confirmed, seal
    reading                             entries from whichever bookie has them, a second one when the first is slow

The shell around it: `connection`, `bookies`, `ledger_table`, `lac`, and `store`, which implements the port.
"""
