# SPDX-License-Identifier: Apache-2.0
"""``meridian subscriptions VERB``: where consumers stand, over the admin REST API."""

from __future__ import annotations

import re
import time

import click

from meridian_broker.cli import status_report
from meridian_broker.cli.asking import confirm, yes_option
from meridian_broker.cli.names import TopicName, part, topic_name
from meridian_broker.cli.nouns import regions_of_topic
from meridian_broker.cli.output import Console, force_option, forced, say, with_console
from meridian_broker.cli.rest import AdminRefused

EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
"""Pulsar's two reserved message ids: before everything and after everything."""


def place_in_topic(text: str) -> dict[str, int] | int:
    """A message id from ``earliest``, ``latest`` or ``LEDGER:ENTRY``; a number from milliseconds since 1970.

    :raises click.BadParameter: it is something else.
    """
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if found := re.fullmatch(r"(\d{1,18}):(-1|\d{1,18})", text):
        return {"ledgerId": int(found[1]), "entryId": int(found[2]), "partitionIndex": -1}
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    raise click.BadParameter(
        f"{text!r} is not a position: write earliest, latest, LEDGER:ENTRY or milliseconds since 1970"
    )


def subscription_path(topic: TopicName, subscription: str) -> str:
    """The admin path of one subscription."""
    return f"{topic.path}/subscription/{part(subscription)}"


def scope_path(topic: TopicName, subscription: str) -> str:
    """Where the dispatch scope of one subscription is set."""
    return f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/scope"


@click.group()
def subscriptions() -> None:
    """Subscriptions of a topic: who consumes it, and how far they are.

    A replicated subscription has the same progress in every region of its topic, so its consumers may continue in
    another region at any time. A consumer asks for that (`meridian consume --replicated`), or `create --replicated`,
    or a policy of its topic or namespace (`replicateSubscriptionState`). To switch it on later:

    \b
      meridian subscriptions replicate orders billing --dry-run   what each region would skip
      meridian subscriptions replicate orders billing             do it, in all regions
      meridian subscriptions status orders billing                are all regions in step? exit code 0: yes

    Every command talks to one region (`--url`) and acts on a replicated subscription in all its regions.
    docs/replicated-subscriptions.md explains each figure and each reason.
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
    help="Maximum age of an acknowledgement that another region has not confirmed yet.",
)
@with_console
def subscriptions_status(console: Console, topic: TopicName, subscription: str, most_ms: int) -> None:
    """Show where SUBSCRIPTION stands in every region of TOPIC, and the lag.

    Exit code 0: all are in step. 1: one is not; the reasons are printed. 2: a region did not answer, and the others see
    nothing wrong.

    \b
      meridian subscriptions status orders billing
      meridian subscriptions status orders billing --json | jq '.regions[].peers'
    """
    path = f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/status"
    found = console.admin.get(path, {"allRegions": "true"})
    code, sentences = status_report.verdict(found, most_ms)
    if console.as_json:
        console.tree({**found, "in_step": code == status_report.YES, "problems": sentences})
    else:
        for text in status_report.tables(found, int(time.time() * 1000)):
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
    help="With origin, on a topic of two regions: a third region that votes when one is to take over from the other. "
    "Empty: none.",
)
@with_console
def subscriptions_set_scope(
    console: Console, topic: TopicName, subscription: str, scope: str, witness: str | None
) -> None:
    """Set which regions deliver the messages of SUBSCRIPTION. With origin, each message goes to one region only.

    \b
      meridian subscriptions set-scope orders billing origin --witness eu-central
    """
    wanted = {"dispatchScope": scope} | ({} if witness is None else {"witness": witness})
    console.admin.request("POST", scope_path(topic, subscription), body=wanted)
    console.done(f"subscription {subscription} of {topic} has dispatch scope {scope}")


@subscriptions.command("take-over")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option("--origin", required=True, help="The region in which the messages were published.")
@click.option("--by", "preferred", required=True, help="The region that delivers them from now on. ORIGIN undoes it.")
@with_console
def subscriptions_take_over(console: Console, topic: TopicName, subscription: str, origin: str, preferred: str) -> None:
    """Let another region deliver the messages published in ORIGIN, until you change it back.

    On a topic of two regions this is how the messages of a dead region continue to be delivered. Make sure that it
    is dead: if it is only cut off, it keeps delivering, and consumers in both regions get the same messages.
    """
    console.admin.request(
        "POST", scope_path(topic, subscription), body={"takeOver": {"origin": origin, "by": preferred}}
    )
    console.done(f"{preferred} delivers the messages of {subscription} of {topic} that were published in {origin}")


@subscriptions.command("create")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option(
    "--from",
    "place",
    type=place_in_topic,
    default="latest",
    show_default=True,
    help="First message: earliest, latest or LEDGER:ENTRY.",
)
@click.option("--replicated", is_flag=True, help="Keep its progress the same in all regions of the topic.")
@with_console
def subscriptions_create(
    console: Console, topic: TopicName, subscription: str, place: dict[str, int] | int, replicated: bool
) -> None:
    """Create SUBSCRIPTION on TOPIC before its first consumer subscribes."""
    if isinstance(place, int):
        raise click.UsageError(
            "a new subscription begins at a message, not at a time: create it, then reset it to the time"
        )
    query = {"replicated": "true"} if replicated else {}
    console.admin.request("PUT", subscription_path(topic, subscription), query, body=place)
    console.done(f"created subscription {subscription} on {topic}")


@subscriptions.command("replicate")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@click.option("--off", is_flag=True, help="Stop replicating. Each region continues on its own from where it is.")
@click.option("--from", "source", metavar="REGION", help="Use this region's progress for all, not their union.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what each region would skip.")
@with_console
def subscriptions_replicate(
    console: Console, topic: TopicName, subscription: str, off: bool, source: str | None, dry_run: bool
) -> None:
    """Keep the progress of SUBSCRIPTION the same in all regions of TOPIC.

    What was acknowledged in any region counts in all of them, so a region may skip messages that were not consumed
    there; the number is printed. With `--from`, all regions take over the progress of that one, and may skip messages
    or deliver some again. A region that cannot be reached follows once it is back.

    \b
      meridian subscriptions replicate orders billing --dry-run
      meridian subscriptions replicate orders billing --from us-east
      meridian subscriptions replicate orders billing --off
    """
    if off and source is not None:
        raise click.UsageError("--from is for switching replication on: leave out --off")
    wanted = {"replicated": not off, "from": source, "dryRun": dry_run}
    path = f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/mode"
    answer = console.admin.request("POST", path, body=wanted)
    if console.as_json:
        console.tree(answer)
        return
    verb = "would skip" if dry_run else "skips"
    for region, one in sorted(answer["regions"].items()):
        if "problem" in one:
            problem = str(one["problem"])
            say(problem if problem.startswith(region) else f"{region}: {problem}")
        else:
            again = f", and delivers {one['again']} again" if one["again"] else ""
            say(f"{region}: {verb} {one['skips']} entries{again}")
    state = "replicated" if answer["replicated"] else "no longer replicated"
    say("nothing was changed" if dry_run else f"subscription {subscription} of {topic} is {state}")


@subscriptions.command("delete")
@click.argument("topic", type=topic_name)
@click.argument("subscription")
@force_option
@yes_option
@with_console
def subscriptions_delete(console: Console, topic: TopicName, subscription: str, force: bool, yes: bool) -> None:
    """Delete SUBSCRIPTION and its progress; a replicated one in all its regions."""
    regions = regions_of(console, topic, subscription)
    confirm(yes, f"Delete subscription {subscription} of {topic} with its progress{_in(regions)}?")
    console.admin.request("DELETE", subscription_path(topic, subscription), forced(force))
    console.done(f"deleted subscription {subscription} of {topic}{_in(regions)}", regions=regions)


def regions_of(console: Console, topic: TopicName, subscription: str) -> list[str]:
    """Where a change to a subscription takes effect: in all regions of the topic if it is replicated, else here. Empty
    when the broker does not say, as for a non-persistent topic."""
    path = f"/meridian/v1/subscriptions/{topic.below}/{part(subscription)}/status"
    try:
        found = console.admin.get(path)
    except AdminRefused:
        return []
    if all(one["replicated"] for one in status_report.parts_of(found)):
        return regions_of_topic(console, topic)
    return [found["region"]]


def _in(regions: list[str]) -> str:
    return f" in {', '.join(regions)}" if regions else ""


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
@yes_option
@with_console
def subscriptions_reset(
    console: Console, topic: TopicName, subscription: str, place: dict[str, int] | int, yes: bool
) -> None:
    """Move SUBSCRIPTION; a replicated one in all its regions.

    Moving back delivers acknowledged messages again, moving forward skips messages. LEDGER:ENTRY is an id of the region
    in --url.
    """
    path = f"{subscription_path(topic, subscription)}/resetcursor"
    regions = regions_of(console, topic, subscription)
    if isinstance(place, dict):
        check_place(console, topic, place)
    confirm(yes, f"Move subscription {subscription} of {topic}{_in(regions)}? Messages may be repeated or skipped.")
    if isinstance(place, int):
        console.admin.request("POST", f"{path}/{place}")
    else:
        console.admin.request("POST", path, body=place)
    console.done(f"moved subscription {subscription} of {topic}{_in(regions)}", regions=regions)


def check_place(console: Console, topic: TopicName, place: dict[str, int]) -> None:
    """The broker moves to the nearest existing message, as in Pulsar; a user who mistyped an id wants to know.

    :raises AdminRefused: the topic has no such ledger in this region.
    """
    if place in (EARLIEST, LATEST):
        return
    found = console.admin.get(f"{topic.path}/internalStats")
    ledgers = [one["ledgerId"] for one in found["ledgers"]]
    if place["ledgerId"] not in ledgers:
        raise AdminRefused(
            404,
            f"nothing was moved: {topic} has no ledger {place['ledgerId']} in this region. It has {ledgers[0]} to "
            f"{ledgers[-1]} (`meridian topics stats {topic} --internal`); ids of another region are translated by "
            "`meridian topics translate-id`"
            if ledgers
            else f"nothing was moved: {topic} has no messages in this region",
        )


@subscriptions.command("expire")
@click.argument("topic", type=topic_name)
@click.argument("subscription", required=False)
@click.option("--older-than", type=click.IntRange(min=0), help="Seconds since the messages were published.")
@click.option("--up-to", "place", type=place_in_topic, help="LEDGER:ENTRY of the last message to expire, or latest.")
@click.option("--all-regions", is_flag=True, help="In every region of the topic, not only in this one.")
@yes_option
@with_console
def subscriptions_expire(
    console: Console,
    topic: TopicName,
    subscription: str | None,
    older_than: int | None,
    place: dict[str, int] | int | None,
    all_regions: bool,
    yes: bool,
) -> None:
    """Skip unacknowledged messages of SUBSCRIPTION, or of all subscriptions if none is named."""
    if (older_than is None) == (place is None) or isinstance(place, int):
        raise click.UsageError("say which messages expire: --older-than SECONDS, or --up-to LEDGER:ENTRY")
    if subscription is None and place is not None:
        raise click.UsageError("--up-to is for one subscription: name it")
    whose = "all subscriptions" if subscription is None else f"subscription {subscription}"
    scope = "every region" if all_regions else "this region"
    confirm(yes, f"Skip these unacknowledged messages of {whose} of {topic} in {scope}?")
    where = f"{topic.path}/all_subscription" if subscription is None else subscription_path(topic, subscription)
    query = {"allRegions": "true"} if all_regions else {}
    if place is not None:
        console.admin.request("POST", f"{where}/expireMessages", query, body=place)
    else:
        console.admin.request("POST", f"{where}/expireMessages/{older_than}", query)
    console.done(f"expired messages of {whose} of {topic} in {scope}")
