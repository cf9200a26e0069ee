# SPDX-License-Identifier: Apache-2.0
"""Leases between regions: which one may dispatch a stream, while no other does (R26)."""
