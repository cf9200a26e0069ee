# SPDX-License-Identifier: Apache-2.0
"""House rules that no other tool checks, tested on the checkout itself.

Each test collects every offence before it fails, so that one run shows them all.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from meridian_broker.server.settings import BY_KEY
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.checkout.source_files import ROOT, files, generated, python_files, tree

MODULE_LINES_MAX = 600
TEST_MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 100
"""Far above the goals (400 and 60): a module or function this long contains another one."""

MAY_PRINT = ("broker/src/meridian_broker/cli/", "bench/", "e2e/", "examples/", "demo/", "tests/")
MAY_READ_ENVIRONMENT = ("broker/src/meridian_broker/server/main.py", "broker/src/meridian_broker/server/supervisor.py")


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """All trees are kept, and garbage collection while building them took three quarters of the time."""
    gc.disable()
    yield
    gc.enable()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def is_script(path: Path) -> bool:
    with (ROOT / path).open("rb") as file:
        return file.read(2) == b"#!"


def assert_none(offences: list[str], rule: str) -> None:
    assert not offences, f"{rule}:\n" + "\n".join(offences)


def test_git_lists_this_file() -> None:
    assert Path("tests/unit/house/test_tidy.py") in files()
    assert len(python_files("broker/src/")) > 10


def test_every_source_file_names_its_licence() -> None:
    suffixes = {".py", ".sh", ".toml", ".proto", ".ini", ".yaml", ".yml"}
    sources = [path for path in files() if path.suffix in suffixes or path.name == "Makefile" or is_script(path)]
    offences = [
        str(path)
        for path in sources
        if not generated(path)
        and "SPDX-License-Identifier: Apache-2.0" not in "".join((ROOT / path).read_text().splitlines()[:3])
    ]
    assert_none(offences, "the first lines say SPDX-License-Identifier: Apache-2.0")


def test_nothing_points_to_one_persons_machine() -> None:
    # Spelt in pieces, or this file would itself be an offence.
    pattern = re.compile("|".join(["/wo" + r"rk/(main|shared)\b", "/ho" + r"me/(?!\$|<)\w+/", r"/\.pye" + "nv/"]))
    offences = []
    for path in files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        offences += [f"{path}: {found.group()}" for found in pattern.finditer(text)]
    assert_none(offences, "no absolute path of one machine")


def test_the_lock_names_versions_and_checksums_and_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    assert not re.search(r"^\s*--(?!hash=)", lock, re.MULTILINE)
    requirements = re.findall(r"^([\w.-]+)(\S*)", lock, re.MULTILINE)
    assert_none([name for name, pin in requirements if not pin.startswith("==")], "every requirement is pinned")


def locked(path: str) -> dict[str, str]:
    """Name -> version in a lock."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


def test_images_contain_what_their_distributions_need_at_the_checkouts_versions() -> None:
    checkout = locked("requirements.lock")
    build = locked("images/build.lock")
    assert build.items() <= checkout.items(), "images/build.lock: scripts/lock writes it again"
    assert re.search(r"install .*--require-hashes .*build\.lock", (ROOT / "images/install").read_text(encoding="utf-8"))
    for name in ("broker", "operator", "verifier"):
        image = locked(f"images/{name}/requirements.lock")
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = [
            *project["dependencies"],
            *(e for one in project.get("optional-dependencies", {}).values() for e in one),
        ]
        missing = {re.split(r"[^\w.-]", entry)[0].lower() for entry in wanted} - image.keys()
        assert_none(sorted(missing), f"images/{name}/requirements.lock: scripts/lock writes it again")
        assert image.items() <= checkout.items(), f"images/{name}/requirements.lock: scripts/lock writes it again"


def test_the_lock_holds_every_direct_dependency_at_an_allowed_version() -> None:
    held = {canonicalize_name(name): version for name, version in locked("requirements.lock").items()}
    offences = []
    for project in ("pyproject.toml", "broker/pyproject.toml", "operator/pyproject.toml", "verifier/pyproject.toml"):
        tables = tomllib.loads((ROOT / project).read_text(encoding="utf-8"))
        wanted = [*tables["project"]["dependencies"], *tables.get("build-system", {}).get("requires", [])]
        wanted += [entry for group in tables["project"].get("optional-dependencies", {}).values() for entry in group]
        groups = tables.get("dependency-groups", {}).values()
        wanted += [entry for group in groups for entry in group if isinstance(entry, str)]  # else: another group
        for one in map(Requirement, wanted):
            version = held.get(name := canonicalize_name(one.name), "")
            if not name.startswith("meridian-") and (not version or not one.specifier.contains(version)):
                offences.append(f"{project}: {one} against {version or 'nothing'} in requirements.lock")
    assert_none(offences, "CONTRIBUTING.md says how to write requirements.lock again")


def test_documents_name_the_etcd_that_is_built_and_not_a_corrupting_release() -> None:
    modules = (ROOT / "images/etcd/go.mod").read_text(encoding="utf-8")
    versions = set(re.findall(r"go\.etcd\.io/etcd/(?:server|etcdctl)/v3 v(\S+)", modules))
    assert len(versions) == 1, "server and etcdctl are of the same release"
    version = versions.pop()
    assert tuple(map(int, version.split("."))) >= (3, 5, 6)
    assert f"etcd {version}" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_modules_are_short_and_state_their_idea() -> None:
    offences = []
    for path in python_files():
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        limit = TEST_MODULE_LINES_MAX if path.parts[0] == "tests" else MODULE_LINES_MAX
        if len(lines) > limit:
            offences.append(f"{path}: {len(lines)} lines, at most {limit}")
        first = next((line for line in lines if line and not line.startswith("#")), "")
        if path.name != "__init__.py" and not first.startswith('"""'):
            offences.append(f"{path}: no module docstring")
    assert_none(offences, "a module is short and begins with its idea")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_a_docstring_follows_what_it_describes() -> None:
    """A line inserted between an attribute and its docstring gives the docstring to another attribute, or to none."""
    offences = [
        f"{path}:{after.lineno}"
        for path in python_files()
        for node in nodes(path)
        if isinstance(body := getattr(node, "body", None), list)
        for before, after in pairwise(body)
        if is_text(after) and not isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    assert_none(offences, "a docstring comes right after what it describes")


def test_functions_are_short() -> None:
    offences = [
        f"{path}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in python_files("broker/src/", "verifier/src/", "operator/src/")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert_none(offences, f"at most {FUNCTION_LINES_MAX} lines in a function")


def test_no_module_is_a_catch_all() -> None:
    banned = {"util", "utils", "helper", "helpers", "misc", "common"}
    assert_none([str(path) for path in python_files() if banned & set(path.with_suffix("").parts)], "names say what")


def test_test_files_have_different_names() -> None:
    names = (path.name for path in python_files("tests/"))
    counted = Counter(name for name in names if name != "conftest.py")  # pytest distinguishes those by their path
    assert_none([name for name, times in counted.items() if times > 1], "a test file's name is unique")
    assert Path("operator/__init__.py") not in files(), "the standard library has a module named operator"


def test_every_task_has_an_owner() -> None:
    """A task whose reference is dropped may be collected while it runs, and nobody learns of its failure.

    ``group.create_task(...)`` of a TaskGroup is owned by the group.
    """
    offences = []
    for path in python_files("broker/src/", "verifier/src/", "operator/src/", "demo/"):
        for node in nodes(path):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)
                if re.fullmatch(
                    r"(.*\.)?ensure_future|create_task|asyncio\.create_task|.*loop(\(\))?\.create_task", called
                ):
                    offences.append(f"{path}:{node.lineno}: {called}")
    assert_none(offences, "keep the task and await it")


def test_every_queue_has_a_bound() -> None:
    offences = [
        f"{path}:{node.lineno}"
        for path in python_files("broker/src/", "verifier/src/", "operator/src/")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and not node.args
        and not any(keyword.arg == "maxsize" for keyword in node.keywords)
        and re.search(r"(^|\.)(Queue|LifoQueue|PriorityQueue)$", ast.unparse(node.func))
    ]
    assert_none(offences, "a queue has a maxsize")


def test_only_commands_print_to_stdout() -> None:
    offences = [
        f"{path}:{node.lineno}"
        for path in python_files()
        if not str(path).startswith(MAY_PRINT)
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert_none(offences, "a broker logs, a command prints")


def test_the_environment_is_read_in_one_place() -> None:
    offences = [
        f"{path}:{node.lineno}"
        for path in python_files("broker/src/")
        if str(path) not in MAY_READ_ENVIRONMENT
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and ast.unparse(node) in ("os.environ", "os.getenv")
    ]
    assert_none(offences, "settings come through server/settings.py")


def test_no_todo_comments_are_left() -> None:
    pattern = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]))
    offences = [
        f"{path}:{number}"
        for path in python_files()
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert_none(offences, "do it now, or say in the documentation what is not done")


def test_every_setting_does_something() -> None:
    """An option that nothing reads is a broken promise."""
    if not (ROOT / "broker/src/meridian_broker/server/broker.py").exists():
        pytest.skip("there is no broker to configure yet")
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in python_files("broker/src/")}
    unread = [
        key for key, setting in BY_KEY.items() if not any(f".{setting.attribute}" in text for text in sources.values())
    ]
    assert_none(unread, "a setting is read somewhere, or it is removed")


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE)
    explained = re.findall(r"^([a-z][a-z0-9-]*):.*## ", makefile, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE)
    assert targets == explained == phony
