# SPDX-License-Identifier: Apache-2.0
"""One process: settings, the composition root, ``meridian up``, drain."""
