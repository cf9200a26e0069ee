# SPDX-License-Identifier: Apache-2.0
"""A topic's subscriptions: made, served, administered, and known to all its regions (R15-R17)."""
