# SPDX-License-Identifier: Apache-2.0
"""All topics of a broker."""
