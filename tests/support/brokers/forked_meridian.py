# SPDX-License-Identifier: Apache-2.0
"""``meridian`` in a process of its own that is forked from one which has imported it already.

Most of the processor time of a start goes into importing modules. So each process that runs tests has one server
(``multiprocessing``'s fork server) that imports them once and forks every broker. A forked process runs the same
``main`` with the same arguments, and has its own memory, descriptors and signals.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

MERIDIAN = (sys.executable, "-P", "-m", "meridian_broker.server.main")
"""What starts the program as a user does."""
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["meridian_broker.server.main", "meridian_broker.server.running"])


class ForkedMeridian:
    """One such process, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, arguments: Sequence[str], log_file: Path) -> None:
        """
        :param arguments: those of the command line, without the name of the program.
        :param log_file: standard output and standard error are appended to it.
        """
        self._arguments = list(arguments)
        self._process = _FORKING.Process(target=_run, args=(self._arguments, log_file, dict(os.environ)), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """:raises subprocess.TimeoutExpired: it still runs after so many seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended already."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], log_file: Path, environment: dict[str, str]) -> None:
    """The forked process: what the installed script does."""
    from meridian_broker.server.main import main

    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["meridian", *arguments]
    sys.orig_argv = [*MERIDIAN, *arguments]  # what a broker that replaces itself starts
    main()


def _end_with_the_tests() -> None:
    """Whoever kills the process that runs the tests ends their brokers, too: the fork server outlives it otherwise."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)
