# SPDX-License-Identifier: Apache-2.0
"""How a verdict is told: to a program as JSON, to a terminal as tables, to a person as one HTML page."""
