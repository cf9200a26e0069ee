# SPDX-License-Identifier: Apache-2.0
"""Topic names, their watchers, and schemas. Nothing here opens a topic."""
