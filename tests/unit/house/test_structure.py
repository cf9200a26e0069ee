# SPDX-License-Identifier: Apache-2.0
"""The structure figures in docs/architecture.md are upper bounds for this tree."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from meridian_broker.positions.position import Position
from meridian_broker.topics.context import TopicContext
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import SHARED, TYPES
from meridian_broker.topics.topic import Topic
from support.worlds.topic_of_one_region import region

ROOT = Path(__file__).parents[3]
BROKER = ROOT / "broker/src/meridian_broker"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def row(beginning: str) -> list[int]:
    """The numbers in a row's last column."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {beginning}")]
    return [int(number) for number in re.findall(r"\d+", line.rstrip("| ").rpartition("|")[2])]


def assert_within(found: list[int], beginning: str) -> None:
    """The page states no less. If the structure improved, correct the page too."""
    said = row(beginning)
    assert len(found) == len(said)
    assert all(now <= most for now, most in zip(found, said, strict=True)), f"{beginning}: {found}, not {said}"


# -- classes ---------------------------------------------------------------------------------------------------------


def stored(node: ast.AST) -> set[str]:
    """Attributes of ``self`` that are assigned within this node."""
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def face(*classes: tuple[str, str]) -> list[int]:
    """How many public attributes and how many public methods these classes have together."""
    attributes, methods = set[str](), set[str]()
    for file, name in classes:
        tree = ast.parse((BROKER / "topics" / file).read_text(encoding="utf-8"))
        (found,) = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == name]
        attributes |= stored(found)
        for one in found.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                attributes.add(one.target.id)
            elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                methods.add(one.name)
    return [sum(not name.startswith("_") for name in names) for names in (attributes, methods)]


def test_public_attributes_and_methods() -> None:
    context = ("context.py", "TopicContext")
    assert_within(face(("topic.py", "Topic"), context), "`Topic`: public")
    assert_within(face(("subscriptions/subscription.py", "Subscription")), "`Subscription`: the same")
    assert_within(face(("service/service.py", "TopicService")), "`TopicService`: the same")
    parts = [
        ("service/registry.py", "TopicRegistry"),
        ("service/opener.py", "TopicOpener"),
        ("lifecycle/parts.py", "BrokerParts"),
    ]
    assert_within([number for part in parts for number in face(part)], "of these parts")


def test_a_topic_overrides_nothing_of_its_context() -> None:
    """So the parts, which see only the context, see the same whether or not it belongs to a topic."""
    own = {name for name in vars(Topic) if not name.startswith("__")}
    assert not own & vars(TopicContext).keys()


def test_only_a_subscription_replaces_its_record() -> None:
    for file in (BROKER / "topics").rglob("*.py"):
        for one in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and one.attr == "record":
                assert isinstance(one.value, ast.Name) and one.value.id == "self", f"{file.name}:{one.lineno}"


def test_a_type_of_subscription_is_a_module_and_a_table_row() -> None:
    assert row("files that a new type") == [2]
    for kind in TYPES.values():
        named = re.compile(rf"\b{kind.dispatcher.__name__}\b")
        bases = {one.__name__ for other in TYPES.values() for one in other.dispatcher.__mro__[1:]}
        if kind.dispatcher.__name__ not in bases:
            files = {file.name for file in BROKER.rglob("*.py") if named.search(file.read_text(encoding="utf-8"))}
            assert files == {Path(sys.modules[kind.dispatcher.__module__].__file__ or "").name, "types.py"}


# -- the code paths of an acknowledgement, a publish and a seek ------------------------------------------------------


class Port:
    """A client that keeps what it receives."""

    def __init__(self) -> None:
        self.got: list[Position] = []

    def deliver(self, _: Consumer, position: Position, *__: Any) -> None:
        self.got.append(position)

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, _: Consumer) -> None:
        """Nothing to close."""

    def active_consumer_changed(self, *_: Any) -> None:
        """Not shown."""

    def reached_end(self, _: Consumer) -> None:
        """Not shown."""


async def way(work: Callable[[], Awaitable[None]]) -> tuple[int, int, set[str]]:
    """The files of ``topics/`` that run, how often ``subscription.py`` is entered from another file, and the rooms."""
    ran: list[str] = []

    def called(frame: Any, event: str, _: Any) -> None:
        _, found, file = frame.f_code.co_filename.partition("/meridian_broker/")
        if event == "call" and found and (not ran or ran[-1] != file):
            ran.append(file)

    sys.setprofile(called)
    try:
        await work()
    finally:
        sys.setprofile(None)
    inside = [file.removeprefix("topics/") for file in ran if file.startswith("topics/")]
    rooms = {file.partition("/")[0] for file in inside if "/" in file}
    return len(set(inside)), sum(file.endswith("/subscription.py") for file in inside), rooms


async def test_code_paths_through_the_rooms() -> None:
    one = await region(s=True)
    topic, port = one.topic, Port()
    subscription = topic.subscriptions["s"]
    consumer = topic.subscribing.add_consumer(subscription, port, 1, "c", SHARED, 0, None)
    topic.log.watch(topic._dispatch_all)
    consumer.flow(100)
    await one.settle()

    async def ack() -> None:
        subscription.acknowledge(consumer, [port.got.pop(0)])
        await one.settle()

    async def publish() -> None:
        await one.publish(1)

    async def seek() -> None:
        await seeking.seek(subscription.cursor, port.got.pop(3))
        await one.settle()

    rooms: list[int] = []
    for name, work in (("an acknowledgement", ack), ("a publish with one consumer", publish), ("a seek", seek)):
        await way(work)  # the first run finds nothing in memory
        files, entered, passed = await way(work)
        rooms.append(len(passed))
        assert_within([files, entered], f"{name}: ")
    assert_within(rooms, "rooms of `topics/`")
    await topic.close("the test is over")
