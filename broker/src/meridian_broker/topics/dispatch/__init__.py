# SPDX-License-Identifier: Apache-2.0
"""Dispatch: which consumer gets which entry, and when."""
