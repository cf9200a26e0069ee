# SPDX-License-Identifier: Apache-2.0
"""What a subscription has acknowledged, dropped and rewound, and what lies ahead of it."""
