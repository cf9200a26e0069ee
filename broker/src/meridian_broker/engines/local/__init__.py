# SPDX-License-Identifier: Apache-2.0
"""The local ledger engine: all ledgers of a broker in one log on one volume (`store` is the entry point)."""
