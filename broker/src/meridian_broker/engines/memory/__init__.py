# SPDX-License-Identifier: Apache-2.0
"""Engines that keep everything in memory: for tests and the simulator."""
