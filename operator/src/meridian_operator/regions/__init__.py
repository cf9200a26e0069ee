# SPDX-License-Identifier: Apache-2.0
"""Which regions there are, and their brokers' REST."""
