# SPDX-License-Identifier: Apache-2.0
"""Leases between regions: who may dispatch a stream, now, while nobody else does (R26)."""
