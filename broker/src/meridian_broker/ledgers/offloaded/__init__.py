# SPDX-License-Identifier: Apache-2.0
"""Sealed ledgers in an object store: their format, their states, and a ledger storage that reads through.

format       the bytes of a copy
records      the state of a ledger: the table of what may follow what
table        these states in the metadata
cache        blocks that were read, in memory
copies       copies in the object store: written, opened, checked, deleted
reading      a `Reader` of a copy, and one that has two places to read from
storage      a `LedgerStorage` around another one
outside      the same for another process
"""
