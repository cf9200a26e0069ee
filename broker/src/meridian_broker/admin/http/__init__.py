# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of every handler: requests, refusals, connections, gatekeeping."""
