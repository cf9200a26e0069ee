# SPDX-License-Identifier: Apache-2.0
"""From a client's SEND to an entry of the log: admission, access modes, deduplication, rates."""
