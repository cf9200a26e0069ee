# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md: its commands for key rotation, run in order, turn nobody away at any point."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from meridian_broker.gateway.authentication import Authentication, NotAuthenticated
from meridian_broker.gateway.token_keys import read_secret_keys
from support.brokers.stand_in_admin import run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
COMMAND = ".venv/bin/meridian "


def commands(begin: str) -> list[str]:
    """Command lines of the page that begin with this."""
    return [line.strip() for line in PAGE.splitlines() if line.startswith("    ") and line.strip().startswith(begin)]


def meridian_commands() -> list[str]:
    """Commands of the page that use ``meridian``; one in a loop over regions is repeated for each region."""
    found = []
    for line in commands(""):
        loop = re.fullmatch(rf"for region in ([-\w ]+); do ({re.escape(COMMAND)}.*); done", line)
        if loop is not None:
            found += [loop[2].replace("$region", region) for region in loop[1].split()]
        elif line.startswith(COMMAND):
            found.append(line)
    return found


def accepted(keys: Path, token: Path) -> bool:
    """Whether a broker accepts the token that matches these keys."""
    try:
        Authentication(read_secret_keys(str(keys)), frozenset(), "us-east").check(token.read_bytes().strip())
    except NotAuthenticated:
        return False
    return True


def test_keys_are_replaced_by_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers see the two Secrets as one directory: ``secret.key``, and for a while the new key."""
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "seen-by-brokers"
    keys.mkdir()
    assert run("tokens", "create-secret-key", str(keys / "secret.key")).exit_code == 0
    old = tmp_path / "old.jwt"
    made = run("tokens", "create", "--secret-key", f"{keys}/secret.key", "--subject", "admin", "--to", str(old))
    assert made.exit_code == 0
    (tmp_path / "us-east.key").write_bytes((keys / "secret.key").read_bytes())
    (tmp_path / "us-east.key").chmod(0o600)
    for command in meridian_commands():
        done = run(*shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}"
    new = [tmp_path / "verify.jwt"]
    assert accepted(keys, tmp_path / "us-east.jwt"), "made by hand"
    (keys / "2026-11.key").write_bytes((tmp_path / "2026-11.key").read_bytes())
    assert [accepted(keys, one) for one in (old, *new)] == [True] * 2
    (keys / "secret.key").write_bytes((tmp_path / "2026-11.key").read_bytes())
    assert accepted(keys, *new)
    (keys / "2026-11.key").unlink()
    assert [accepted(keys, one) for one in (old, *new)] == [False, True]
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir() if file.is_file()} == {0}


def test_values_that_the_page_sets_exist_in_the_charts() -> None:
    for command in commands("helm upgrade"):
        found = re.search(r"helm/([a-z-]+)", command)
        assert found is not None
        values = yaml.safe_load((ROOT / "helm" / found[1] / "values.yaml").read_text(encoding="utf-8"))
        for path in re.findall(r"--set ([\w.]+)=", command):
            known = values
            for part in path.split("."):
                assert part in known, f"{command}: {found[1]} has no value {path}"
                known = known[part]


def test_secret_files_left_by_the_commands_are_ignored_by_git() -> None:
    """Files that ``meridian`` creates, and copies of Secrets."""
    made = {shlex.split(one)[-1] for one in meridian_commands()}
    copies = {match[1] for line in PAGE.splitlines() if (match := re.search(r"get secret\S* .*> (\S+)$", line))}
    assert {"us-east.jwt", "2026-11.key", "peer.new"} <= made
    assert {"us-east-tokens.yaml", "us-east-identity.yaml", "peer.old", "us-east.key"} <= copies
    names = sorted(made | copies | {"tokens/admin.jwt"})
    told = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True)
    assert sorted(told.stdout.split()) == names
