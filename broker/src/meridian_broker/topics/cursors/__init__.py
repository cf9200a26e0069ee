# SPDX-License-Identifier: Apache-2.0
"""Cursors: what a subscription has acknowledged, dropped and rewound, and what it is still owed."""
