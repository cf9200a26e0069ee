# SPDX-License-Identifier: Apache-2.0
"""The bench's view of the workers: processes that it starts and triggers, and that leave notes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from worker import CONFIRMED, NOTE, SENT, TAKEN

HERE = Path(__file__).resolve().parent


class Worker:
    """One process of ``worker.py``, ready once this object exists."""

    def __init__(self, what: str, **options: Any) -> None:
        self._what = what
        command = [sys.executable, str(HERE / "worker.py"), what, *(f"{key}={value}" for key, value in options.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line("ready")

    def line(self, expected: str) -> None:
        """Wait until it prints this line."""
        assert self._process.stdout is not None
        if (said := self._process.stdout.readline().strip()) != expected:
            raise SystemExit(f"bench: the worker ({self._what}) said {said!r} instead of {expected!r}")

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def go(self) -> Worker:
        self.say("go")
        return self

    def result(self) -> dict[str, Any]:
        """Wait until it ends."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"bench: the worker ({self._what}) failed")
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer


class Notes:
    """The workers' notes: times by number."""

    def __init__(self, *files: Path) -> None:
        self.taken: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.confirmed: dict[int, float] = {}
        kinds = {TAKEN: self.taken, SENT: self.sent, CONFIRMED: self.confirmed}
        for file in files:
            data = file.read_bytes()
            for kind, number, moment in NOTE.iter_unpack(data[: len(data) // NOTE.size * NOTE.size]):
                kinds[kind][number] = moment
