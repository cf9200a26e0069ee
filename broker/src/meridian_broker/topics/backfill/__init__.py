# SPDX-License-Identifier: Apache-2.0
"""Entries that other regions hold and this one lacks: asked for, checked, stored (R4-R6, R21)."""
