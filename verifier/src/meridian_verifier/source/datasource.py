# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("meridian")``: the tables of all regions as DataFrames.

Options:

- ``regions``: ``name=url`` pairs or the path of a regions file;
- ``table``: one of the contract's tables; or several, each with the number of its snapshot, such as
  ``progress@1,ranges@2``: they come as one, with the columns ``taken`` and ``table`` in front;
- ``snapshot``: JSON ``{region: [{"snapshot", "partitions"}, ...]}``, snapshots taken before; absent: one is taken now;
- ``packed``: ``true`` packs all rows of a topic and origin in a batch into one, see ``source.packing``; for tables that
  have both columns;
- ``topics``: glob or ``re:`` pattern, when a snapshot is taken now;
- ``token-file``: path of a file with the token, readable where the tasks run.

A task reads one partition of one region's table. A region that cannot be asked yields one row with only ``region`` and
``problem`` set: a region that is down is an answer, not an error of the job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, In, InputPartition, IsNotNull, IsNull
from pyspark.sql.pandas.types import from_arrow_schema

from meridian_verifier.source.client import RegionClient, RegionUnreachable, Taken, read_token
from meridian_verifier.source.packing import PACKED, pack
from meridian_verifier.source.regions import Region, parse_regions
from meridian_verifier.source.tables import PROBLEM, TABLE, TABLES, combined, conform

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT_NAME: Final = "meridian"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table and which of the region's snapshots it is read from, counted from 1."""

    table: str
    taken: int


class Part(InputPartition):
    """One partition of one region's table."""

    def __init__(self, region: Region, snapshot: str, wanted: Wanted, number: int, problem: str | None) -> None:
        super().__init__((region.name, wanted.table, number))
        self.region = region
        self.snapshot = snapshot
        self.wanted = wanted
        self.number = number
        self.problem = problem


class MeridianDataSource(DataSource):
    """Registered as ``meridian``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        wanted = parse_tables(self.options.get("table", ""))
        return from_arrow_schema(PACKED if is_packed(self.options) else arrow_schema(wanted))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (the port's signature)
        return MeridianReader(dict(self.options))


def is_packed(options: Mapping[str, str]) -> bool:
    return options.get("packed", "false").lower() == "true"


def parse_tables(text: str) -> list[Wanted]:
    """``"progress@1,ranges@2"`` -> what to read.

    :raises ValueError: an unknown table; the message lists the known ones.
    """
    wanted = []
    for part in text.split(","):
        table, _, taken = part.strip().partition("@")
        if table not in TABLES:
            raise ValueError(f"option table: there is no table {table!r}, only {', '.join(TABLES)}")
        wanted.append(Wanted(table, int(taken or 1)))
    return wanted


def arrow_schema(wanted: Sequence[Wanted]) -> pa.Schema:
    """Schema of the rows: the table's own columns and ``problem``; for several tables see ``combined``."""
    if len(wanted) == 1:
        return TABLES[wanted[0].table].append(PROBLEM)
    return combined([one.table for one in wanted])


class MeridianReader(DataSourceReader):
    """Plans partitions on the driver, reads them in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._wanted = parse_tables(options.get("table", ""))
        self._packed = is_packed(options)
        self._schema = PACKED if self._packed else arrow_schema(self._wanted)
        self._regions = parse_regions(options["regions"])
        self._topics = options.get("topics")
        self._token_file = options.get("token-file")
        self._snapshots: Mapping[str, list[dict[str, Any]]] = json.loads(options.get("snapshot") or "{}")
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Equality, membership and null tests on flat columns are answered here; the rest is Spark's."""
        self._filters = []
        for one in filters:
            flat = isinstance(one, EqualTo | In | IsNull | IsNotNull) and len(one.attribute) == 1
            if flat and not self._packed and one.attribute != (PROBLEM.name,):  # type: ignore[attr-defined]
                self._filters.append(one)
            else:
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        return [
            part
            for region in self._regions
            if self._admits("region", region.name)
            for wanted in self._wanted
            if self._admits("taken", wanted.taken)
            for part in self._parts(region, wanted)
        ]

    def _parts(self, region: Region, wanted: Wanted) -> Iterator[Part]:
        try:
            taken = self._taken(region, wanted.taken)
        except RegionUnreachable as error:
            yield Part(region, "", wanted, 0, str(error))
            return
        for number in range(taken.partitions.get(wanted.table, 0)):
            yield Part(region, taken.snapshot, wanted, number, None)

    def _taken(self, region: Region, number: int) -> Taken:
        if self._snapshots:
            known = self._snapshots.get(region.name, [])
            if len(known) < number:
                raise RegionUnreachable(region.name, f"no snapshot {number} of this region was taken")
            return Taken(known[number - 1]["snapshot"], 0, known[number - 1]["partitions"])
        return RegionClient(region, read_token(self._token_file)).take(self._topics)

    def _admits(self, column: str, value: str | int) -> bool:
        """Whether the pushed filters keep rows with this value of a column that is constant per partition."""
        for one in self._filters:
            if isinstance(one, EqualTo) and one.attribute == (column,) and one.value != value:
                return False
            if isinstance(one, In) and one.attribute == (column,) and value not in one.value:
                return False
        return True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            raise TypeError(f"not a partition of this source: {partition!r}")
        try:
            if partition.problem:
                raise RegionUnreachable(partition.region.name, partition.problem.partition(": ")[2])
            client = RegionClient(partition.region, read_token(self._token_file))
            batches = client.rows(partition.snapshot, partition.wanted.table, partition.number)
            yield from self._shaped(batches, partition.wanted)
        except RegionUnreachable as error:
            one = pa.record_batch([pa.array([error.region])], names=["region"])
            # A failed read is reported whatever the filters are: missing rows match no filter.
            yield conform(one, self._schema, problem=str(error))

    def _shaped(self, batches: Iterator[pa.RecordBatch], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        alone = wanted.table == "entries" if self._packed else len(self._wanted) == 1
        constants: dict[str, object] = {"problem": None}
        if not alone:
            constants["taken"] = wanted.taken
            if TABLE.name not in TABLES[wanted.table].names:
                constants["table"] = wanted.table
        if not self._packed:
            for batch in batches:
                yield self._filtered(conform(batch, self._schema, **constants))
            return
        schema = arrow_schema([wanted] if alone else [wanted, Wanted("ranges", 1)])
        for batch in batches:
            yield pack(conform(batch, schema, **constants), wanted.table, wanted.taken)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for one in self._filters:
            column = batch.column(one.attribute[0])  # type: ignore[attr-defined]
            if isinstance(one, EqualTo):
                batch = batch.filter(pc.equal(column, pa.scalar(one.value, column.type)))
            elif isinstance(one, In):
                batch = batch.filter(pc.is_in(column, pa.array(list(one.value), column.type)))
            elif isinstance(one, IsNull):
                batch = batch.filter(pc.is_null(column))
            else:
                batch = batch.filter(pc.is_valid(column))
        return batch
