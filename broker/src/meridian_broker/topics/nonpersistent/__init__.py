# SPDX-License-Identifier: Apache-2.0
"""Topics that store nothing."""
