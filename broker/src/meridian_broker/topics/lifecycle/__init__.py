# SPDX-License-Identifier: Apache-2.0
"""How a topic is opened, replayed, terminated and deleted."""
