# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a region's metadata in one SQLite file."""
