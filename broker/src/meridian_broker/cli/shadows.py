# SPDX-License-Identifier: Apache-2.0
"""``meridian topics shadow VERB``: read-only topics that share the ledgers of another one (PIP-180)."""

from __future__ import annotations

import click

from meridian_broker.cli.asking import confirm, yes_option
from meridian_broker.cli.names import TopicName, topic_name
from meridian_broker.cli.output import Console, forced, with_console


@click.group()
def shadow() -> None:
    """Shadows of a topic: the same messages under the same ids, with subscriptions of their own.

    They are read like any topic, and published to through their source.

    \b
      meridian topics shadow create orders orders-for-analytics
      meridian consume orders-for-analytics -s reports
      meridian topics stats orders-for-analytics
      meridian topics shadow delete orders orders-for-analytics
    """


@shadow.command("create")
@click.argument("source", type=topic_name)
@click.argument("topic", type=topic_name)
@click.option(
    "--hold/--no-hold",
    "holds",
    default=True,
    show_default=True,
    help="Whether messages stay stored until the shadow's subscriptions have acknowledged them. With --no-hold "
    "subscriptions skip what the source deletes.",
)
@click.option(
    "--auto-reset-backlog-entries",
    "reset_behind",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    help="If another broker serves SOURCE: a full ledger with more unread entries than this is not read ahead. 0: as "
    "the broker's settings say.",
)
@with_console
def create(console: Console, source: TopicName, topic: TopicName, holds: bool, reset_behind: int) -> None:
    """Create TOPIC as a shadow of SOURCE, with as many partitions.

    SOURCE must exist in this region, and may have messages already: a new subscription of TOPIC can begin with the
    earliest. Messages are published to SOURCE only. TOPIC may be in another namespace.

    \b
      meridian topics shadow create orders orders-for-analytics
      meridian topics shadow create orders analytics/live/orders --no-hold
    """
    body = {"topic": str(topic), "holdSourceLedgers": holds, "autoResetBacklogEntries": reset_behind}
    console.admin.request("POST", f"{source.path}/shadowTopics", body=body)
    console.done(f"created {topic}, a shadow of {source}")


@shadow.command("list")
@click.argument("source", type=topic_name)
@with_console
def listed(console: Console, source: TopicName) -> None:
    """Shadows of SOURCE, by name.

    \b
      meridian topics shadow list orders
    """
    console.names(console.admin.get(f"{source.path}/shadowTopics", {"all": "true"}))


@shadow.command("delete")
@click.argument("source", type=topic_name)
@click.argument("topic", type=topic_name)
@click.option("--force", is_flag=True, help="Delete it even if consumers are connected to it.")
@yes_option
@with_console
def delete(console: Console, source: TopicName, topic: TopicName, force: bool, yes: bool) -> None:
    """Delete TOPIC, a shadow of SOURCE, with its subscriptions. The messages stay: they are SOURCE's.

    To delete SOURCE with all its shadows, use `meridian topics delete SOURCE --cascade`.

    \b
      meridian topics shadow delete orders orders-for-analytics
    """
    confirm(yes, f"Delete {topic} and its subscriptions?")
    query = {**forced(force), "topic": str(topic)}
    console.admin.request("DELETE", f"{source.path}/shadowTopics", query)
    console.done(f"deleted {topic}, a shadow of {source}")
