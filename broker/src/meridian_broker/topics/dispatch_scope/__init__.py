# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin``: which region dispatches which messages of a subscription (R25, R26)."""
