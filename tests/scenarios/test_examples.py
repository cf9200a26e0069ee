# SPDX-License-Identifier: Apache-2.0
"""Every program in ``examples/``, run as a user would, against three regions of ``meridian up``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.broker_process import RegionsProcess
from support.brokers.region_clients import CENTRAL, EAST, WEST

ROOT = Path(__file__).parents[2]
REGIONS = (EAST, WEST, CENTRAL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "partial_acks": "nothing is left",
    "partitioned": "each sensor's in order",
    "produce_consume": "consumed 10 orders in the other",
    "replicated_subscription": "it continued at the exact place",
    "schema_json": "total 5.25",
    "watch_progress": "every region knows that 5 of 50 messages are open",
}
"""What the last two lines of each contain when it did what it promises."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_an_example_does_what_it_says(regions: RegionsProcess, example: Path) -> None:
    addresses = {
        "--east": regions.service_url(EAST),
        "--west": regions.service_url(WEST),
        "--east-admin": regions.admin_url(EAST),
        "--west-admin": regions.admin_url(WEST),
    }
    taken = set(re.findall(r'add_argument\("(--[a-z-]+)"', example.read_text(encoding="utf-8")))
    arguments = [part for option, url in addresses.items() if option in taken for part in (option, url)]
    for _ in range(2):  # twice: what the first run left does not disturb the second
        ended = subprocess.run(
            [sys.executable, "-W", "error", str(example), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert SAYS[example.stem] in "\n".join(ended.stdout.splitlines()[-2:])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_an_example_can_be_copied(example: Path) -> None:
    """It says how to run it, defaults to the addresses of ``meridian up``, and needs only pulsar-client."""
    text = example.read_text(encoding="utf-8")
    assert f"    python examples/{example.name}\n" in text
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"pulsar"}
    for option, default in re.findall(r'"(--(?:east|west)(?:-admin)?)", default="([^"]+)"', text):
        expected = {
            "--east": "pulsar://127.0.0.1:6650",
            "--west": "pulsar://127.0.0.1:6660",
            "--east-admin": "http://127.0.0.1:8080",
            "--west-admin": "http://127.0.0.1:8090",
        }
        assert default == expected[option]
