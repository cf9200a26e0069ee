# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions as Pulsar runs them (PIP-33): snapshots of positions, taken by markers in the log."""
