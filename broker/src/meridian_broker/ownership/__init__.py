# SPDX-License-Identifier: Apache-2.0
"""Which broker of a region owns which topics: bundles, terms of ownership, and placement. Pure.

Other rooms import only these modules of it::

    bundles  owner  placement  records  transactions  waiting
"""
