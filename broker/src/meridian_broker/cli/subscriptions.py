# SPDX-License-Identifier: Apache-2.0
"""``meridian subscriptions VERB``: where consumers stand, over the admin REST API."""

from __future__ import annotations

import re
import time

import click

from meridian_broker.cli import standing
from meridian_broker.cli.names import TopicName, part, topic_name
from meridian_broker.cli.nouns import force_option, forced
from meridian_broker.cli.output import Console, say, with_console

EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
"""Pulsar's two reserved message ids: before everything and after everything."""


def place_in_topic(text: str) -> dict[str, int] | int:
    """A message id from ``earliest``, ``latest`` or ``LEDGER:ENTRY``; a number from milliseconds since 1970.

    :raises click.BadParameter: it is none of them.
    """
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if found := re.fullmatch(r"(\d{1,18}):(-1|\d{1,18})", text):
        return {"ledgerId": int(found[1]), "entryId": int(found[2]), "partitionIndex": -1}
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    raise click.BadParameter(f"{text!r} is no place: write earliest, latest, LEDGER:ENTRY or milliseconds since 1970")


def subscription_path(topic: TopicName, subscription: str) -> str:
    """The admin path of one subscription."""
    return f"{topic.path}/subscription/{part(subscription)}"


def scope_path(topic: TopicName, subscription: str) -> str:
    """Where the dispatch scope of one subscription is set."""
    return f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/scope"


@click.group()
def subscriptions() -> None:
    """Subscriptions of a topic: who consumes it, and how far they are.

    A replicated subscription stands at the same messages in every region of its topic, so its consumers may go on in
    another region at any time. It is made so by its consumers (``meridian consume --replicated``), when it is created
    (``create --replicated``), by a policy of its topic or namespace (``replicateSubscriptionState``), or later:

    \b
      meridian subscriptions replicate orders billing --dry-run   what each region would skip
      meridian subscriptions replicate orders billing             do it, in all regions
      meridian subscriptions status orders billing                are all regions in step? exit code 0: yes

    Every command is about one region's API (``--url``) and acts on all regions of a replicated subscription. The page
    replicated-subscriptions.md explains each figure and each reason.
    """


@subscriptions.command("list")
@click.argument("topic", type=topic_name)
@with_console
def subscriptions_list(console: Console, topic: TopicName) -> None:
    """Names of the subscriptions of TOPIC."""
    console.names(console.admin.get(f"{topic.path}/subscriptions"))


@subscriptions.command("status")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option(
    "--max-lag",
    "most_ms",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="MS",
    help="So old may the oldest acknowledgement be that another region has not confirmed.",
)
@with_console
def subscriptions_status(console: Console, topic: TopicName, subscription: str, most_ms: int) -> None:
    """Where SUBSCRIPTION stands in every region of TOPIC, and how far they are behind each other.

    All regions are asked. Exit code 0: all are in step. 1: one is not; the reasons are told. 2: a region could not be
    asked, and those that could see nothing wrong.

    \b
      meridian subscriptions status orders billing
      meridian subscriptions status orders billing --json | jq '.regions[].peers'
    """
    path = f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/status"
    found = console.admin.get(path, {"allRegions": "true"})
    code, sentences = standing.verdict(found, most_ms)
    if console.as_json:
        console.tree({**found, "in_step": code == standing.YES, "problems": sentences})
    else:
        for text in standing.tables(found, int(time.time() * 1000)):
            click.echo(text)
        say("", *(sentences or ["all regions are in step"]))
    raise SystemExit(code)


@subscriptions.command("set-scope")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.argument("scope", type=click.Choice(["local", "origin"]))
@click.option(
    "--witness",
    metavar="REGION",
    help="With origin, for a topic of two regions: a third one, where the topic does not live, votes when one of "
    "them is to take over for the other. Empty: none.",
)
@with_console
def subscriptions_set_scope(
    console: Console, topic: TopicName, subscription: str, scope: str, witness: str | None
) -> None:
    """Say which region sends what of SUBSCRIPTION: with origin, a message goes to the consumers of one region only.

    \b
      meridian subscriptions set-scope orders billing origin --witness eu-central
    """
    wanted = {"dispatchScope": scope} | ({} if witness is None else {"witness": witness})
    console.admin.request("POST", scope_path(topic, subscription), body=wanted)
    console.done(f"subscription {subscription} of {topic} has dispatch scope {scope}")


@subscriptions.command("take-over")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option("--origin", required=True, help="The region whose messages are meant.")
@click.option("--by", "home", required=True, help="The region that is to dispatch them; the origin itself: as before.")
@with_console
def subscriptions_take_over(console: Console, topic: TopicName, subscription: str, origin: str, home: str) -> None:
    """Let another region dispatch what began in one, until told otherwise.

    On a topic of two regions this is how the share of a dead region goes on. Be sure that it is dead: one that lives
    and is only cut off goes on with its share, and consumers of both regions get the same messages.
    """
    console.admin.request("POST", scope_path(topic, subscription), body={"takeOver": {"origin": origin, "by": home}})
    console.done(f"{home} dispatches what began in {origin} of {subscription} of {topic}")


@subscriptions.command("create")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option("--from", "place", type=place_in_topic, default="latest", show_default=True, help="Where it begins.")
@click.option("--replicated", is_flag=True, help="Keep its progress the same in all regions of the topic.")
@with_console
def subscriptions_create(
    console: Console, topic: TopicName, subscription: str, place: dict[str, int] | int, replicated: bool
) -> None:
    """Create SUBSCRIPTION on TOPIC before any consumer comes."""
    if isinstance(place, int):
        raise click.UsageError(
            "a subscription begins at a message, not at a time: create it, then reset it to the time"
        )
    query = {"replicated": "true"} if replicated else {}
    console.admin.request("PUT", subscription_path(topic, subscription), query, body=place)
    console.done(f"created subscription {subscription} on {topic}")


@subscriptions.command("replicate")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option("--off", is_flag=True, help="Stop: each region goes on by itself from where it is.")
@click.option("--from", "source", metavar="REGION", help="Take this region's progress for all, not the union.")
@click.option("--dry-run", is_flag=True, help="Change nothing, only say what each region would skip.")
@with_console
def subscriptions_replicate(
    console: Console, topic: TopicName, subscription: str, off: bool, source: str | None, dry_run: bool
) -> None:
    """Keep the progress of SUBSCRIPTION the same in all regions of TOPIC.

    What was acknowledged in any region counts in all of them, so a region may skip messages that nobody consumed there:
    it is said how many. With ``--from``, all regions take over the progress of that one; others may then skip messages,
    and deliver some again. The flag is the same in all regions; one that is away follows when it is back.

    \b
      meridian subscriptions replicate orders billing --dry-run
      meridian subscriptions replicate orders billing --from us-east
      meridian subscriptions replicate orders billing --off
    """
    if off and source is not None:
        raise click.UsageError("--from is for switching replication on")
    wanted = {"replicated": not off, "from": source, "dryRun": dry_run}
    path = f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/mode"
    told = console.admin.request("POST", path, body=wanted)
    if console.as_json:
        console.tree(told)
        return
    verb = "would skip" if dry_run else "skips"
    for region, one in sorted(told["regions"].items()):
        if "problem" in one:
            problem = str(one["problem"])
            say(problem if problem.startswith(region) else f"{region}: {problem}")
        else:
            again = f", and delivers {one['again']} again" if one["again"] else ""
            say(f"{region}: {verb} {one['skips']} entries{again}")
    state = "replicated" if told["replicated"] else "not replicated any more"
    say("nothing was changed" if dry_run else f"subscription {subscription} of {topic} is {state}")


@subscriptions.command("delete")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@force_option
@with_console
def subscriptions_delete(console: Console, topic: TopicName, subscription: str, force: bool) -> None:
    """Delete SUBSCRIPTION and its progress."""
    console.admin.request("DELETE", subscription_path(topic, subscription), forced(force))
    console.done(f"deleted subscription {subscription} of {topic}")


@subscriptions.command("reset")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option(
    "--to",
    "place",
    type=place_in_topic,
    required=True,
    help="earliest, latest, LEDGER:ENTRY or milliseconds since 1970.",
)
@with_console
def subscriptions_reset(console: Console, topic: TopicName, subscription: str, place: dict[str, int] | int) -> None:
    """Move SUBSCRIPTION. Going back delivers again what was acknowledged."""
    path = f"{subscription_path(topic, subscription)}/resetcursor"
    if isinstance(place, int):
        console.admin.request("POST", f"{path}/{place}")
    else:
        console.admin.request("POST", path, body=place)
    console.done(f"moved subscription {subscription} of {topic}")


@subscriptions.command("expire")
@click.argument("topic", type=topic_name)
@click.argument("subscription", required=False)
@click.option("--older-than", type=click.IntRange(min=0), help="Seconds since the messages were published.")
@click.option("--up-to", "place", type=place_in_topic, help="LEDGER:ENTRY, the last message that goes, or latest.")
@click.option("--all-regions", is_flag=True, help="In every region of the topic, not in this one alone.")
@with_console
def subscriptions_expire(
    console: Console,
    topic: TopicName,
    subscription: str | None,
    older_than: int | None,
    place: dict[str, int] | int | None,
    all_regions: bool,
) -> None:
    """Let go of unacknowledged messages of SUBSCRIPTION, or of all subscriptions when none is named."""
    if (older_than is None) == (place is None) or isinstance(place, int):
        raise click.UsageError("say which messages go: --older-than SECONDS, or --up-to LEDGER:ENTRY")
    if subscription is None and place is not None:
        raise click.UsageError("--up-to is for one subscription: name it")
    where = f"{topic.path}/all_subscription" if subscription is None else subscription_path(topic, subscription)
    query = {"allRegions": "true"} if all_regions else {}
    if place is not None:
        console.admin.request("POST", f"{where}/expireMessages", query, body=place)
    else:
        console.admin.request("POST", f"{where}/expireMessages/{older_than}", query)
    console.done(f"expired messages of {'all subscriptions' if subscription is None else subscription} of {topic}")
