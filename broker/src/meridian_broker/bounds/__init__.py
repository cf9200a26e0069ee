# SPDX-License-Identifier: Apache-2.0
"""The one table of Meridian's fixed limits on sizes, counts and times: one constant per row.

A row is ``NAME: Final[Unit] = value`` with the reason under it; each module is one section of the table. The code
compares with these constants, tests import them, and ``make docs`` prints them as ``docs/limits.md``.

Not here: settings of an operator (``server/settings*.py``, printed as ``docs/configuration.md``), and the capacity of a
storage format or a metadata store (beside the format, because it changes only with the format).

Other rooms import only these modules of it::

    clients  compaction  describing  http  permissions  regions  snapshots
"""
