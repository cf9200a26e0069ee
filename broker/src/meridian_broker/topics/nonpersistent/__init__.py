# SPDX-License-Identifier: Apache-2.0
"""Non-persistent topics, which store nothing."""
