# SPDX-License-Identifier: Apache-2.0
"""Figures that several answers share: backlogs, lag, filling, rates."""
