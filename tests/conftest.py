# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers beside this file importable from every test."""
