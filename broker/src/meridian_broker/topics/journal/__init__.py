# SPDX-License-Identifier: Apache-2.0
"""A topic's metadata record and progress log: formats and writers (R10)."""
