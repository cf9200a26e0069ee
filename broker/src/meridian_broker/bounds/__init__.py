# SPDX-License-Identifier: Apache-2.0
"""The one table of what Meridian refuses for being too large, too many or too late: one constant per row.

A row is ``NAME: Final[Unit] = value`` with the reason under it; each module is one section of the table. The code
compares with these constants, tests import them, and ``make docs`` prints them as ``docs/limits.md``.

Not here: what an operator may choose (``server/settings*.py``, printed as ``docs/configuration.md``) and what a storage
format or a metadata store can hold at all (beside the format, for it changes with it alone).
"""
