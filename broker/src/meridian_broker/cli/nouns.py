# SPDX-License-Identifier: Apache-2.0
"""``meridian topics|regions VERB``, over the admin REST API."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import click

from meridian_broker.cli import permissions, status_report, topic_tables
from meridian_broker.cli.asking import confirm, yes_option
from meridian_broker.cli.names import TopicName, namespace_name, part, topic_name
from meridian_broker.cli.output import NO, Console, force_option, forced, say, table, with_console
from meridian_broker.cli.rest import AdminRefused, AdminUnreachable
from meridian_broker.cli.shadows import shadow

POLL_SECONDS: Final = 0.25
"""Between two checks whether a region is ready."""


@click.group()
def topics() -> None:
    """Topics of a namespace."""


@topics.command("list")
@click.argument("namespace", type=namespace_name, default="public/default")
@with_console
def topics_list(console: Console, namespace: str) -> None:
    """Topics of NAMESPACE. Each partition is listed as a topic of its own."""
    tenant, _, name = namespace.partition("/")
    console.names(sorted(console.admin.get(f"/admin/v2/persistent/{part(tenant)}/{part(name)}")))


@topics.command("create")
@click.argument("topic", type=topic_name)
@click.option("--partitions", type=click.IntRange(min=1), help="Create it with this many partitions.")
@with_console
def topics_create(console: Console, topic: TopicName, partitions: int | None) -> None:
    """Create TOPIC."""
    if partitions is None:
        console.admin.request("PUT", topic.path)
        console.done(f"created {topic}")
    else:
        console.admin.request("PUT", f"{topic.path}/partitions", body=partitions)
        console.done(f"created {topic} with {partitions} partitions")


@topics.command("delete")
@click.argument("topic", type=topic_name)
@force_option
@click.option("--cascade", is_flag=True, help="Delete its shadows, too. Otherwise a topic with shadows is not deleted.")
@yes_option
@with_console
def topics_delete(console: Console, topic: TopicName, force: bool, cascade: bool, yes: bool) -> None:
    """Delete TOPIC in all its regions, with its messages, partitions and subscriptions.

    Without --force, all regions must be reachable. With it, an unreachable one deletes TOPIC once it is back. On a
    terminal you are asked first.
    """
    base = topic.path
    count = partition_count(console, topic)
    regions = regions_of_topic(console, topic)
    where = f" in {', '.join(regions)}" if regions else ""
    if not yes:
        lost = ", ".join(console.admin.get(f"{base}/subscriptions"))
        confirm(
            yes, f"Delete {topic}{where}, its messages and {f'subscriptions {lost}' if lost else 'no subscription'}?"
        )
    query = {**forced(force), **({"cascade": "true"} if cascade else {})}
    console.admin.request("DELETE", f"{base}/partitions" if count else base, query)
    later = "; an unreachable region deletes it once it is back" if len(regions) > 1 and force else ""
    console.done(f"deleted {topic}{where}{later}", regions=regions)


def regions_of_topic(console: Console, topic: TopicName) -> list[str]:
    """Where a topic lives; empty when the broker does not say, as for a non-persistent topic."""
    try:
        found: Any = console.admin.get(f"{topic.path}/replication", {"applied": "true"})
    except AdminRefused:
        return []
    return list(found) if isinstance(found, list) else []


@topics.command("stats")
@click.argument("topic", type=topic_name)
@click.option("--internal", is_flag=True, help="Ledgers and cursors instead.")
@with_console
def topics_stats(console: Console, topic: TopicName, internal: bool) -> None:
    """Traffic of TOPIC, its subscriptions and replication. --json prints everything that the broker counts."""
    partitioned = partition_count(console, topic) > 0
    last = ("partitioned-internalStats" if partitioned else "internalStats") if internal else ""
    found = console.admin.get(f"{topic.path}/{last or ('partitioned-stats' if partitioned else 'stats')}")
    if console.as_json:
        console.tree(found)
    elif not internal:
        click.echo("\n".join(topic_tables.stats(found)))
    else:
        for name, one in sorted(found["partitions"].items()) if partitioned else (("", found),):
            if name:
                say(name)
            click.echo("\n".join(topic_tables.internal(one)))


@topics.command("status")
@click.argument("topic", type=topic_name)
@with_console
def topics_status(console: Console, topic: TopicName) -> None:
    """Show how far this region's messages of TOPIC are replicated.

    "not there" counts what is stored in this region but not in that one; unless a third region has it, it would be lost
    with this region's disk. Exit code 0: every region is connected, and nothing is held up or missing. 1: otherwise.

    \b
      meridian topics status orders --url http://127.0.0.1:8090
    """
    last = "partitioned-stats?perPartition=false" if partition_count(console, topic) > 0 else "stats"
    found = console.admin.get(f"{topic.path}/{last}")
    links, missing = found["replication"], found["meridian"]["missing"]
    if console.as_json:
        console.tree({"regions": links, "missing": missing})
    else:
        click.echo(table(status_report.LINKS, status_report.link_rows(links)))
        for remote, link in sorted(links.items()):
            if link["lastError"] and (link["hold"] or not link["connected"]):
                say(f"{remote}: {link['lastError']}")
        for gap in missing:
            say(gap["detail"])
    if missing or any(link["hold"] or not link["connected"] for link in links.values()):
        raise SystemExit(NO)


@topics.command("partitions")
@click.argument("topic", type=topic_name)
@click.option(
    "--grow-to", type=click.IntRange(min=1), help="Add partitions up to this number. Partitions cannot be removed."
)
@with_console
def topics_partitions(console: Console, topic: TopicName, grow_to: int | None) -> None:
    """Show or increase the number of partitions of TOPIC; 0 means that it is not partitioned."""
    if grow_to is not None:
        console.admin.request("POST", f"{topic.path}/partitions", body=grow_to)
        console.done(f"{topic} has {grow_to} partitions")
    else:
        console.tree(partition_count(console, topic))


topics.add_command(shadow)
for about_permissions in (permissions.of_topic, permissions.grant_on_topic, permissions.revoke_on_topic):
    topics.add_command(about_permissions)


@topics.command("translate-id")
@click.argument("topic", type=topic_name)
@click.argument("message_id", metavar="LEDGER:ENTRY")
@click.option("--from", "source", required=True, metavar="REGION", help="The region in which the message has this id.")
@with_console
def topics_translate_id(console: Console, topic: TopicName, message_id: str, source: str) -> None:
    """Find the id that a message of another region has in this one.

    LEDGER:ENTRY is its id there: the same message of TOPIC has a different id in every region. For a partitioned topic,
    name the partition.

    \b
      meridian topics translate-id orders 890635205029889:7 --from us-east --url http://127.0.0.1:8090
    """
    path = f"/meridian/v1/topics/{topic.below}/messageid/translate"
    answer = console.admin.get(path, {"from": source, "id": message_id})
    console.tree({"id": answer["id"], "region": answer["region"], "origin": answer["origin"]})


@topics.command("accept-gap")
@click.argument("topic", type=topic_name)
@click.option("--origin", required=True, metavar="REGION", help="The region whose entries are missing.")
@click.option(
    "--up-to", "upto", required=True, metavar="LEDGER:ENTRY", help="The last missing one, as `topics status` shows it."
)
@click.option("--force", is_flag=True, help="Even if a region that may have them does not answer.")
@yes_option
@with_console
def topics_accept_gap(console: Console, topic: TopicName, origin: str, upto: str, force: bool, yes: bool) -> None:
    """Give up messages of TOPIC that no region has any more.

    `topics status` reports them as missing. This region then continues behind them, and every subscription here records
    them as dropped with cause "lost". For a partitioned topic, name the partition.

    \b
      meridian topics status orders
      meridian topics accept-gap orders --origin us-east --up-to 890635205029889:7
    """
    path = f"/meridian/v1/topics/{topic.below}/gaps/accept"
    confirm(yes, f"Give up the missing messages of {topic} from {origin} up to {upto} for good?")
    answer = console.admin.request("POST", path, body={"origin": origin, "upto": upto, "force": force})
    if console.as_json:
        console.tree(answer)
    else:
        say(f"entries of {origin} after {answer['after']} up to {answer['upto']} were given up in {answer['region']}")
        say(f"recorded as dropped for: {', '.join(answer['subscriptions']) or 'no subscription (the topic has none)'}")


@topics.command("snapshots")
@click.argument("topic", type=topic_name)
@click.option("--without", "without", multiple=True, metavar="REGION", help="Go on without a lost region. Repeatable.")
@click.option("--with-all", is_flag=True, help="Wait for every region again.")
@yes_option
@with_console
def topics_snapshots(console: Console, topic: TopicName, without: tuple[str, ...], with_all: bool, yes: bool) -> None:
    """Show the snapshots of TOPIC by which its subscriptions move in other regions (snapshot mode).

    While a region is away no snapshot is complete, so subscriptions stay where they are in the other regions. If it is
    lost for good, and you cannot remove it from the topic yet, go on `--without` it. A region of Apache Pulsar then
    skips messages of the lost region that it has and this one never got; Meridian regions deliver them again. It also
    skips its own from before its link to this region, which the lost one may still owe: do not do this to a region that
    will be back.
    This lasts until the region answers, the topic is reopened, or you say `--with-all`. For a partitioned topic, name
    the partition.

    \b
      meridian topics snapshots orders
      meridian topics snapshots orders --without us-east
    """
    path = f"/meridian/v1/topics/{topic.below}/snapshots"
    if without or with_all:
        if without and with_all:
            raise click.UsageError("--without and --with-all exclude each other")
        if without:
            names = ", ".join(without)
            confirm(
                yes,
                f"Take snapshots of {topic} without {names}? Regions of Apache Pulsar may then skip messages that no "
                f"consumer has seen: those of {names} that never came here and, if {names} only seems lost, their own "
                "from before their link to this region, which nobody will deliver once it is back.",
            )
        answer = console.admin.request("POST", f"{path}/without", body={"regions": list(without)})
    else:
        answer = console.admin.get(path)
    console.tree(answer)
    if answer["problem"]:
        raise SystemExit(NO)


def partition_count(console: Console, topic: TopicName) -> int:
    """Partitions of a topic; 0 when it is not partitioned or does not exist (then the next request says so)."""
    answer: Any = console.admin.get(f"{topic.path}/partitions")
    return int(answer.get("partitions", 0)) if isinstance(answer, dict) else 0


@click.group()
def regions() -> None:
    """Regions, and the links between them."""


@regions.command("list")
@with_console
def regions_list(console: Console) -> None:
    """Names and addresses of all regions."""
    rows = []
    for name in console.admin.get("/admin/v2/clusters"):
        cluster = console.admin.get(f"/admin/v2/clusters/{part(name)}")
        rows.append(
            {"name": name, "brokerServiceUrl": cluster.get("brokerServiceUrl"), "url": cluster.get("serviceUrl")}
        )
    console.rows(["name", "brokerServiceUrl", "url"], rows)


@regions.command("status")
@with_console
def regions_status(console: Console) -> None:
    """Check whether consumers may come back to this region.

    Exit code 0: every link is up, every topic is open, complete and replicating, and what was acknowledged elsewhere
    while this region was away is known here. 1: something is missing; it is printed. A region that falls silent counts
    as connected for ten more seconds.

    \b
      meridian regions status --url http://127.0.0.1:8090
    """
    found = console.admin.get("/meridian/v1/regions")
    if console.as_json:
        console.tree(found)
    else:
        say(*status_report.links_of(found))
    if status_report.wrong_links(found):
        raise SystemExit(NO)


@regions.command("add")
@click.argument("region")
@click.argument("broker_url", metavar="BROKER-URL")
@click.argument("admin_url", metavar="ADMIN-URL")
@with_console
def regions_add(console: Console, region: str, broker_url: str, admin_url: str) -> None:
    """Add REGION here, and in all regions that share scope `clusters` with this one.

    With TLS (pulsar+ssl, https) these link to it without a restart. REGION itself starts with a `regionsFile` that
    lists all. Then allow tenants to use it, and add it to namespaces.

    \b
      meridian regions add ap-south pulsar+ssl://ap:6651 https://ap:8443
    """
    is_tls = broker_url.startswith("pulsar+ssl:")
    if is_tls != admin_url.startswith("https:"):
        raise click.UsageError("give both addresses with TLS (pulsar+ssl, https), or both without (pulsar, http)")
    suffix = "Tls" if is_tls else ""
    told = {f"brokerServiceUrl{suffix}": broker_url, f"serviceUrl{suffix}": admin_url}
    console.admin.request("PUT", f"/admin/v2/clusters/{part(region)}", body=told)
    metadata = console.admin.get("/meridian/v1/metadata/status")
    if metadata.get("enabled") and "clusters" in metadata.get("scopes", ()):
        console.done(
            f"{region} is known here, and will be in all regions that share clusters with {metadata['region']}"
        )
    else:
        console.done(
            f"{region} is known in {metadata['region']} alone: make it known in each other region, too, or share "
            "clusters first (metadataSyncScopes)"
        )


@regions.command("replace")
@click.argument("region")
@yes_option
@with_console
def regions_replace(console: Console, region: str, yes: bool) -> None:
    """Let REGION's new metadata store take the place of an earlier store of that name.

    Ask the new region itself (`--url`). It catches up with all other regions, and then they accept it. The earlier
    store must not run any more: from then on the others refuse it.

    \b
      meridian regions replace us-east --url http://127.0.0.1:8080
    """
    confirm(yes, f"Is the earlier region {region} gone for good?")
    found = console.admin.request("POST", f"/meridian/v1/regions/{part(region)}/replace")
    console.done(f"{region} is accepted by {', '.join(found['told']) or 'no other region'}", regions=found["told"])


@regions.command("wait")
@click.option("--ready", is_flag=True, required=True, help="Wait until consumers may come back; see `regions status`.")
@click.option(
    "--timeout", "seconds", type=click.FloatRange(min=0), default=60, show_default=True, help="Seconds to wait."
)
@with_console
def regions_wait(console: Console, ready: bool, seconds: float) -> None:  # noqa: ARG001 - names what is waited for
    """Wait until this region is ready: after a restart, before its consumers come back.

    Exit code 0: it is ready. 1: not before the timeout; what is missing is printed. 2: it did not answer.

    \b
      meridian regions wait --ready --url http://127.0.0.1:8090 && systemctl start billing
    """
    until = time.monotonic() + seconds
    while True:
        silence: AdminUnreachable | None = None
        missing: list[str] = []
        left = max(1.0, until - time.monotonic())
        admin = replace(console.admin, timeout_seconds=min(left, console.admin.timeout_seconds))
        try:
            missing = status_report.wrong_links(admin.get("/meridian/v1/regions"))
        except AdminUnreachable as error:  # it may just be starting
            silence = error
        is_ready = silence is None and not missing
        if is_ready or time.monotonic() >= until:
            break
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
    if silence is not None:
        raise silence
    if console.as_json:
        console.tree({"ready": is_ready, "missing": missing})
    else:
        say(*(missing or ["ready"]))
    if not is_ready:
        raise SystemExit(NO)
