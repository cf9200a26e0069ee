# SPDX-License-Identifier: Apache-2.0
"""Reads the tables that docstrings print, so that tests can compare them with what the code does."""

from __future__ import annotations


def rows(text: str | None) -> list[list[str]]:
    """The cells of the table in a docstring; its lines of ``=`` say where columns begin."""
    lines = (text or "").splitlines()
    rulers = [at for at, line in enumerate(lines) if line.startswith("===")]
    begins = [at for at, sign in enumerate(lines[rulers[0]]) if sign == "=" and lines[rulers[0]][at - 1 : at] != "="]
    ends = [*begins[1:], None]
    return [
        [line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
        for line in lines[rulers[0] + 1 : rulers[2]]
        if not line.startswith("===")
    ]
