# SPDX-License-Identifier: Apache-2.0
"""``meridian`` in a process of its own, forked from one that has already imported it.

Most of the CPU time of a start goes into importing modules. Each process that runs tests therefore has one server
(``multiprocessing``'s fork server) that imports them once and forks every broker and command. A forked process runs the
same ``main`` with the same arguments, and has its own memory, descriptors and signals.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from meridian_broker.cli.main import COMMANDS

MERIDIAN = (sys.executable, "-P", "-m", "meridian_broker.server.main")
"""Starts the program as a user does."""
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    ["meridian_broker.server.main", "meridian_broker.server.running"]
    + [f"meridian_broker.cli.{module}" for module, _ in COMMANDS.values()]
)


class ForkedMeridian:
    """One forked process, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        log_file: Path,
        *,
        errors: Path | None = None,
        stdin: Connection | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        :param arguments: of the command line, without the name of the program.
        :param log_file: standard output is appended to it, and standard error unless ``errors`` is given.
        :param errors: standard error is appended to it.
        :param stdin: the reading end of a pipe; None: empty input.
        :param environment: None: that of the tests.
        """
        self._arguments = list(arguments)
        chosen = dict(os.environ if environment is None else environment)
        self._process = _FORKING.Process(
            target=_run, args=(self._arguments, log_file, errors or log_file, stdin, chosen), daemon=True
        )
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
        """Does nothing if the process has already ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def meridian(
    *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. Like ``subprocess.run``, but forked; its standard input is a pipe.

    :raises subprocess.TimeoutExpired: it still runs after so many seconds, and was killed.
    """
    reading, writing = _FORKING.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        output, errors = Path(directory, "output"), Path(directory, "errors")
        command = ForkedMeridian(arguments, output, errors=errors, stdin=reading, environment=environment)
        reading.close()
        feeding = threading.Thread(target=_feed, args=(writing, stdin))
        feeding.start()
        try:
            code = command.wait(seconds)
        finally:
            command.kill()
            feeding.join()
        return subprocess.CompletedProcess(arguments, code, output.read_bytes(), errors.read_bytes())


def meridian_text(
    *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The same with empty input, and output as text instead of bytes."""
    done = meridian(*arguments, environment=environment, seconds=seconds)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def _feed(writing: Connection, content: bytes) -> None:
    with writing, open(writing.fileno(), "wb", buffering=0, closefd=False) as pipe:
        left = memoryview(content)
        with contextlib.suppress(BrokenPipeError):  # the command did not read all of it
            while left:
                left = left[pipe.write(left) :]


def _run(
    arguments: list[str], log_file: Path, errors: Path, stdin: Connection | None, environment: dict[str, str]
) -> None:
    """Do in the forked process what the installed script does."""
    gc.freeze()  # collecting garbage among modules, which stay anyway, would copy every shared page
    from meridian_broker.server.main import main

    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    with log_file.open("ab") as log, errors.open("ab") as complaints:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(complaints.fileno(), sys.stderr.fileno())
    if stdin is not None:
        os.dup2(stdin.fileno(), 0)
        stdin.close()
        sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["meridian", *arguments]
    sys.orig_argv = [*MERIDIAN, *arguments]  # the program that a broker execs when it replaces itself
    main()


def _end_with_the_tests() -> None:
    """Ends the brokers when the process that runs the tests is killed; otherwise, the fork server outlives it."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)
