# SPDX-License-Identifier: Apache-2.0
"""Forms of a verdict: JSON for programs, tables for a terminal, one HTML page for people."""
