# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the frame decoder and of a whole broker's connection (``FUZZ_SECONDS`` each, default 60).

Where atheris cannot be installed, this is skipped, and the other modules' input from hypothesis must suffice.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = int(float(os.environ.get("FUZZ_SECONDS", "60")))
INPUTS_MIN = 100
PROGRAM = Path(__file__).with_name("coverage_guided.py")


@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.parametrize("target", ["frames", "connection"])
def test_fuzz_by_coverage(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python or machine: only hypothesis draws")
    command = [
        sys.executable,
        str(PROGRAM),
        target,
        str(tmp_path),
        f"-max_total_time={SECONDS}",
        "-print_final_stats=1",
    ]
    tried = 0
    while tried <= INPUTS_MIN:  # a machine may be too busy for as many in that time
        ended = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        found = [path for path in tmp_path.iterdir() if path.name.startswith(("crash-", "leak-", "timeout-", "oom-"))]
        inputs = "\n".join(f"{path.name}: {path.read_bytes().hex()}" for path in found)
        assert ended.returncode == 0, f"{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}\n{inputs}"
        runs = [line.split()[-1] for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
        assert runs and int(runs[0]), f"no inputs were tried:\n{ended.stderr[-2000:]}"
        tried += int(runs[0])
    print(f"{target}: {tried} inputs")
