# SPDX-License-Identifier: Apache-2.0
"""The export of this region's state as tables (``docs/export.md``)."""
