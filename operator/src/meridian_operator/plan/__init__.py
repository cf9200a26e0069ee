# SPDX-License-Identifier: Apache-2.0
"""Pure functions from the desired and the observed state to a list of typed changes."""
