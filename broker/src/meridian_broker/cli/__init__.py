# SPDX-License-Identifier: Apache-2.0
"""The command ``meridian``: what a person types.

Other rooms import only these modules of it::

    main  output  programs
"""
