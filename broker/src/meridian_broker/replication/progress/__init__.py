# SPDX-License-Identifier: Apache-2.0
"""The progress exchange: an ack made in one region becomes known, durably, in all others (R10-R20)."""
