# SPDX-License-Identifier: Apache-2.0
"""What is removed without an acknowledgement: trimming, expiry, backlog quotas (R6, R14)."""
