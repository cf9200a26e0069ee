# SPDX-License-Identifier: Apache-2.0
"""Imports between the files of this checkout have no cycles, type-only imports included.

``.importlinter`` says which room builds on which. This checks files, tests and tools included. A cycle of files cannot
be read, tested or moved one file at a time, and an annotation is as much a reason to open the other file as a call.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.checkout.source_files import ROOT, python_files, tree

SOURCES = tuple(map(Path, ("broker/src", "operator/src", "verifier/src")))
ALSO_ON_THE_PATH = tuple(map(Path, ("tests", "tests/integration", "demo", "bench/core", "bench/failover")))
"""Import roots, besides the importing file's folder and those above it."""

IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.+)|import (.+))", re.MULTILINE)
"""One import statement, matched in the text: parsing a thousand files takes ten seconds, this a third of one."""
NAME = re.compile(r"(?<!as )\b(?!as\b)[A-Za-z_][\w.]*")

BROKER = Path("broker/src/meridian_broker")
DOORS = "Other rooms import only these modules of it::"
"""Introduces the list in a room's docstring; indented names follow."""

SUPPORT = tuple(
    Path("tests", room)
    for room in (
        "support/kubernetes",
        "support/verifier",
        "support/worlds",
        "simulation",
        "support/brokers",
        "support/contracts",
        "support/protocol",
        "support/checkout",
    )
)
"""The rooms that tests build on; each may import those after it."""


class Finder:
    """Finds the file of a module name, as the interpreter does on the checkout's paths."""

    def __init__(self, files: list[Path]) -> None:
        self._files = {str(path.with_suffix("")).removesuffix("/__init__"): path for path in files}
        self._tops = {part for path in self._files for part in path.split("/")}

    def imported(self, path: Path) -> Iterator[Path]:
        """The files of the checkout that a file imports, anywhere in it, type-only imports included."""
        folders = [str(folder) for folder in (*path.parents, *SOURCES, *ALSO_ON_THE_PATH)]
        for module, names, modules in IMPORT.findall((ROOT / path).read_text(encoding="utf-8")):
            for name in NAME.findall(names or modules):
                choices = (f"{module}.{name}", module) if module else (name,)
                if choices[0].partition(".")[0] not in self._tops:
                    continue
                places = (f"{folder}/{choice.replace('.', '/')}" for choice in choices for folder in folders)
                place = next(filter(None, map(self._files.get, places)), path)
                if place != path:
                    yield place


@functools.cache
def imports() -> dict[Path, set[Path]]:
    """The imports of each file."""
    files = python_files()
    finder = Finder(files)
    return {path: set(finder.imported(path)) for path in files}


def circles(graph: dict[Path, set[Path]]) -> set[Path]:
    """Groups of files that import each other in a cycle."""
    left = {path: set(others) for path, others in graph.items()}
    found: set[Path] = set()
    while True:
        try:
            TopologicalSorter(left).prepare()
            return found
        except CycleError as error:
            around = set(error.args[1])
            one = min(around)
            found |= around
            # The cycle is merged into one file, so that a cycle connected to it is found next.
            left[one] = set().union(*(left.pop(path) for path in around)) - around
            left = {path: {one if other in around else other for other in others} for path, others in left.items()}
            left[one].discard(one)


def test_finds_imports() -> None:
    this = Path("tests/unit/house/test_imports.py")
    assert imports()[this] == {Path("tests/support/checkout/source_files.py")}
    assert sum(map(len, imports().values())) > 3000


def test_finds_cycles() -> None:
    a, b, c, d, e = map(Path, "abcde")
    assert circles({a: {b}, b: {c}, c: set()}) == set()
    assert circles({a: {b}, b: {c}, c: {b, d}, d: {e}, e: {c}}) == {b, c, d, e}


def test_no_file_is_in_an_import_cycle() -> None:
    found = circles(imports())
    assert not found, f"in circles of imports: {', '.join(map(str, sorted(found)))}"


def folders_below(room: Path) -> dict[Path, set[Path]]:
    """Of the folders of a room, and of the modules beside them as one, those that each imports."""
    graph: dict[Path, set[Path]] = {}
    for path, others in imports().items():
        if path.is_relative_to(room) and path.name != "__init__.py":
            inside = (part(room, other) for other in others if other.is_relative_to(room))
            graph.setdefault(part(room, path), set()).update(inside)
    return {each: others - {each} for each, others in graph.items()}


def part(room: Path, path: Path) -> Path:
    """The folder of the room that a file of it is in, or the room itself."""
    return room / path.relative_to(room).parts[0] if path.parent != room else room


def test_folders_of_a_room_import_each_other_one_way() -> None:
    """And the modules beside them, as if these were a folder. ``.importlinter`` gives a finer order to some rooms."""
    ordered = re.findall(r"^containers = (\S+)$", (ROOT / ".importlinter").read_text(encoding="utf-8"), re.MULTILINE)
    rooms = {path.parent.parent for path in imports() if any(path.is_relative_to(source) for source in SOURCES)}
    looked_at = {room for room in rooms if len(room.parts) > 3 and ".".join(room.parts[2:]) not in ordered}
    assert BROKER / "metadata" in looked_at
    assert BROKER / "topics" not in looked_at
    for room in looked_at:
        assert not circles(folders_below(room)), room


def test_what_begins_with_an_underscore_is_imported_nowhere() -> None:
    """It may change with its file alone. Modules of other projects are theirs to name."""
    ours = {path.stem for path in python_files()} | {"meridian_broker", "meridian_operator", "meridian_verifier"}
    offences = [
        f"{path} imports {module}.{name}"
        for path in imports()
        for module, names, _ in IMPORT.findall((ROOT / path).read_text(encoding="utf-8"))
        if module.partition(".")[0] in ours or module.rpartition(".")[2] in ours
        for name in (*module.split("."), *NAME.findall(names))
        if re.match("_(?!_)", name)
    ]
    assert not offences, "\n".join(sorted(offences))


@pytest.mark.parametrize("room", SUPPORT, ids=str)
def test_support_rooms_import_only_rooms_below_them(room: Path) -> None:
    below = SUPPORT[SUPPORT.index(room) :]
    offences = [
        f"{path} imports {other}"
        for path, others in imports().items()
        if path.is_relative_to(room)
        for other in others
        if other.parts[0] == "tests" and not any(other.is_relative_to(folder) for folder in below)
    ]
    assert not offences, "\n".join(sorted(offences))


def test_no_test_file_imports_another() -> None:
    """What two of them need is in ``tests/support``: pytest can then collect each alone, and either can be deleted."""
    offences = [
        f"{path} imports {other}"
        for path, others in imports().items()
        for other in others
        if other.parts[0] == "tests" and other.name.startswith("test_")
    ]
    assert not offences, "\n".join(sorted(offences))


def test_every_room_of_the_tests_support_has_its_place() -> None:
    rooms = {path.parent for path in python_files("tests/support/")}
    assert rooms == {room for room in SUPPORT if room.is_relative_to("tests/support")}


def doors(room: Path) -> set[str]:
    """The modules of a room that others may import, as its docstring lists them."""
    _, _, listed = (ast.get_docstring(tree(room / "__init__.py")) or "").partition(DOORS)
    return set(listed.split())


def used_from_outside(room: Path) -> set[str]:
    """The modules of a room that others import."""
    modules = {
        path.relative_to(room).with_suffix("")
        for importer, others in imports().items()
        for path in others
        if importer.is_relative_to(BROKER) and path.is_relative_to(room) and not importer.is_relative_to(room)
    }
    return {".".join(module.parts).removesuffix("__init__").removesuffix(".") for module in modules} - {""}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in (ROOT / BROKER).glob("*/__init__.py")))
def test_a_room_is_entered_by_its_doors(room: str) -> None:
    """A room offers a module to other rooms on purpose: by a line in its own docstring."""
    listed, used = doors(BROKER / room), used_from_outside(BROKER / room)
    assert used <= listed, f"{room}/__init__.py does not offer to other rooms: {', '.join(sorted(used - listed))}"
    assert listed <= used, f"{room}/__init__.py offers what no room imports: {', '.join(sorted(listed - used))}"
