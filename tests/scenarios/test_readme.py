# SPDX-License-Identifier: Apache-2.0
"""The README's commands and its program, run in the README's order against three regions.

A command not run here is listed with the test that covers it instead, so a new one cannot be forgotten.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.broker_process import wait_until
from support.brokers.forked_meridian import MERIDIAN
from support.brokers.region_clients import CENTRAL, EAST, WEST
from support.brokers.up_process import UpProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REGIONS = (EAST, WEST, CENTRAL)
COMMAND = ".venv/bin/meridian "

ELSEWHERE = {
    "git clone ADDRESS-OF-THIS-REPOSITORY meridian": "tests/fresh clones",
    "cd meridian": "tests/fresh",
    "make demo": "tests/fresh runs it",
    "make test": "runs this test",
    "python3 -m venv broker-venv": "tests/fresh installs with plain pip",
    "broker-venv/bin/pip install ./broker": "tests/unit/house/test_packaging.py builds it, tests/fresh installs it",
    "broker-venv/bin/meridian up": "the fixture `regions`",
    f"{COMMAND}up --regions us-east,us-west,eu-central": "the fixture `regions`",
    f"{COMMAND}verify --regions-file data/regions.json --report-dir reports": "test_verified_regions.py",
    "kill -9 PROCESS": "below",
    'eval "$(_MERIDIAN_COMPLETE=bash_source .venv/bin/meridian)"': "below",
}

PRINTS = {
    "produce orders": "stored 2 messages in persistent://public/default/orders",
    "consume orders -s billing --replicated --count 1": "one espresso",
    "consume orders -s billing --replicated --count 1 --url pulsar://127.0.0.1:6660": "two ristretti",
    "topics list": "persistent://public/default/orders",
    "topics stats orders": "billing",
    "subscriptions status orders billing": "all regions are in step",
    "regions list": EAST,
    "regions wait --ready": "ready",
    "tenants create shop": f"created tenant shop in {CENTRAL}, {EAST}, {WEST}",
    "namespaces create shop/orders": f"created namespace shop/orders in {EAST}, {WEST}",
}
"""Command, or how it begins -> what its output contains."""


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(REGIONS, tmp_path_factory.mktemp("readme") / "data") as up:
        yield up


def shown() -> list[str]:
    """Every command of the README, in order."""
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    return [line.strip() for line in prose.splitlines() if line.startswith("    ")]


def at_home(text: str, regions: UpProcess) -> str:
    """The command with the addresses of these regions."""
    for number, region in enumerate(REGIONS):
        text = text.replace(f"pulsar://127.0.0.1:{6650 + 10 * number}", regions.service_url(region))
        text = text.replace(f"http://127.0.0.1:{8080 + 10 * number}", regions.admin_url(region))
    return text


def meridian(regions: UpProcess, arguments: str) -> subprocess.CompletedProcess[str]:
    home = {"MERIDIAN_URL": regions.admin_url(EAST), "MERIDIAN_SERVICE_URL": regions.service_url(EAST)}
    return subprocess.run(
        [*MERIDIAN, *shlex.split(at_home(arguments, regions))],
        env=os.environ | home,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def expected(arguments: str) -> str:
    if arguments in PRINTS:
        return PRINTS[arguments]
    return next(text for beginning, text in PRINTS.items() if arguments.startswith(beginning))


def test_the_commands_of_the_readme_do_what_it_says(regions: UpProcess) -> None:
    ran = []
    for line in shown():
        if line in ELSEWHERE:
            continue
        assert line.startswith(COMMAND), f"run it here, or name in ELSEWHERE the test that covers it: {line}"
        arguments = line.removeprefix(COMMAND)

        def does_it(arguments: str = arguments) -> bool:
            done = meridian(regions, arguments)
            ran.append((arguments, done.returncode, done.stdout, done.stderr))
            return done.returncode == 0 and expected(arguments) in done.stdout

        if arguments.startswith("subscriptions status"):  # other regions learn of acknowledgements a moment later
            wait_until(does_it, arguments)
        else:
            assert does_it(), ran[-1]
    assert {line for line in ELSEWHERE if line not in README} == set()
    assert len({arguments for arguments, *_ in ran}) == len(PRINTS)


def test_the_program_of_the_readme_runs(regions: UpProcess) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    ran = [sys.executable, "-W", "error", "-c", at_home(program, regions)]
    done = subprocess.run(ran, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "b'one espresso'" in done.stdout


def test_what_is_said_of_exit_codes_and_options_is_so(regions: UpProcess) -> None:
    assert meridian(regions, "topics lst").returncode == 64
    assert meridian(regions, "topics stats nowhere").returncode == 1
    assert meridian(regions, "topics list --url http://127.0.0.1:1").returncode == 2
    verify = meridian(regions, "verify --help").stdout
    assert "--regions-file" in verify
    assert "--report-dir" in verify


def test_completion_knows_the_commands() -> None:
    asked = os.environ | {"_MERIDIAN_COMPLETE": "bash_complete", "COMP_WORDS": "meridian top", "COMP_CWORD": "1"}
    code = "from meridian_broker.server.main import main; import sys; sys.argv = ['meridian']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,topics\n"


@pytest.mark.parametrize("target", re.findall(r"^    make ([a-z-]+)", README, flags=re.MULTILINE))
def test_a_target_of_the_readme_is_in_the_makefile(target: str) -> None:
    assert f"\n.PHONY: {target}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_region_that_is_killed_is_reported_and_its_consumers_go_on_elsewhere(regions: UpProcess) -> None:
    """Must run last: it leaves a region dead."""
    process = re.findall(rf"^{EAST} .* (\d+)$", regions.log(), flags=re.MULTILINE)[-1]
    assert meridian(regions, "produce again -m one -m two").returncode == 0
    assert meridian(regions, "consume again -s billing --replicated --count 1").stdout == "one\n"
    west = "http://127.0.0.1:8090"
    wait_until(
        lambda: meridian(regions, f"subscriptions status again billing --url {west}").returncode == 0,
        "the regions to be in step",
    )
    os.kill(int(process), signal.SIGKILL)
    elsewhere = "consume again -s billing --replicated --count 1 --url pulsar://127.0.0.1:6660"
    assert meridian(regions, elsewhere).stdout == "two\n"
    wait_until(lambda: "Start it again: meridian broker" in regions.log(), "the report to be written")
