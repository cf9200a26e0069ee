# SPDX-License-Identifier: Apache-2.0
"""What to say of a record in a format that this version does not read."""

from __future__ import annotations


def unreadable(what: str, found: int, newest: int, *, form: str = "format") -> str:
    """Only a newer number calls for an upgrade: no version ever wrote one below 1.

    :param what: names the record, such as "the progress".
    :param newest: the newest format that this version reads.
    :param form: names the format, where a file contains several.
    """
    if found > newest:
        return (
            f"{what} was written by a newer version of Meridian ({form} {found}, this one reads up to {newest}); "
            "upgrade this broker"
        )
    known = "1" if newest == 1 else f"1 to {newest}"
    return f"{what} is damaged: it has {form} {found}, and this version of Meridian reads {known}"
