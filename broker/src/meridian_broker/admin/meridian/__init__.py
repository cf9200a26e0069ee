# SPDX-License-Identifier: Apache-2.0
"""Meridian's own REST: regions, subscriptions over regions, gaps."""
