# SPDX-License-Identifier: Apache-2.0
"""Which consumer gets which entry, and when."""
