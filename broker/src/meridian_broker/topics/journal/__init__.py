# SPDX-License-Identifier: Apache-2.0
"""What a topic's metadata record and progress log keep: formats and writers (R10)."""
