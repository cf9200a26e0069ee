# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers beside this file importable from every test, and starts what the tests of a module share.

With CI set, hypothesis draws the same examples every time, so that a run says something about the change it checks.
At a desk every run draws new ones, and ``make fuzz`` does so in both places. Tests of algebra and codecs say that they
want 500; the others, each example of which is a small world, run EXAMPLES of them: 100, in ``make simulate`` 500. How
long an example takes decides nothing: a machine under load may stop a test for as long as it likes.

SIGTERM ends a run as Ctrl-C does: with what failed so far, and pytest's closing line. A time limit sends it.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.brokers.broker_process import BrokerProcess, RegionsProcess
from support.brokers.logged_errors import no_errors_but
from support.checkout.reentrant_ast import parse_nothing_in_tracebacks

COMPUTING = Path(__file__).parent / "unit"
IMPORTED_LATE = (
    "hypothesis.internal.conjecture.optimiser",
    "hypothesis.strategies._internal.random",
    "hypothesis.strategies._internal.types",
)
"""By hypothesis, while a test runs. In a fresh checkout pytest parses each of its modules on import, and a parse by
Python 3.11 fails ("AST constructor recursion depth mismatch") if the garbage collector runs during it and finalizes
something that has to be reported, because formatting the report's traceback parses as well."""

signal.signal(signal.SIGTERM, signal.default_int_handler)
parse_nothing_in_tracebacks()
settings.register_profile(
    "desk",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "100")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Modules and tests stay until the end, so the garbage collector need not go through them again and again: neither
    afterwards nor while they load, where that takes up to a third of the time."""
    gc.disable()
    try:
        for module in IMPORTED_LATE:
            import_module(module)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, files that compute and files that wait for other processes take turns,
    so that neither the processors nor the processes are idle; files with tests marked as slow come first, then large
    ones, so that none of them is alone at the end."""
    if not hasattr(config, "workerinput"):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    longest_first = sorted(files, key=lambda path: (path not in slow, -path.stat().st_size, path))
    computing = [path for path in longest_first if COMPUTING in path.parents]
    waiting = [path for path in longest_first if COMPUTING not in path.parents]
    turns = chain.from_iterable(zip_longest(waiting, computing))
    items[:] = chain.from_iterable(files[path] for path in turns if path is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A mistake that was caught and logged in a test's own process fails it, unless it is marked
    ``logs_error("its text")``: a client may wait for an answer that never comes."""
    with no_errors_but(str(mark.args[0]) for mark in item.iter_markers("logs_error")):
        yield


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """One, of region ``solo``, with the module's ``SETTINGS`` if it has some."""
    chosen = getattr(request.module, "SETTINGS", {})
    with BrokerProcess("solo", tmp_path_factory.mktemp("broker") / "data", settings=chosen) as running:
        yield running


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RegionsProcess]:
    """The module's ``REGIONS``, which replicate to each other, with its ``SETTINGS`` if it has some."""
    names, chosen = request.module.REGIONS, getattr(request.module, "SETTINGS", {})
    with RegionsProcess(names, tmp_path_factory.mktemp("regions") / "data", settings=chosen) as running:
        yield running
