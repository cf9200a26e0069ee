# SPDX-License-Identifier: Apache-2.0
"""``meridian tenants|namespaces|topics|regions VERB``: what is set up once, over the admin REST API."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import click

from meridian_broker.cli import standing
from meridian_broker.cli.names import TopicName, namespace_name, namespace_path, part, topic_name
from meridian_broker.cli.output import NO, Console, say, table, with_console
from meridian_broker.cli.rest import AdminUnreachable

POLL_SECONDS: Final = 0.25
"""Between two questions whether a region is ready."""

force_option = click.option("--force", is_flag=True, help="Also when it is in use.")


def forced(force: bool) -> dict[str, str]:
    """The query that every forced deletion carries."""
    return {"force": "true"} if force else {}


@click.group()
def tenants() -> None:
    """Tenants: who owns namespaces."""


@tenants.command("list")
@with_console
def tenants_list(console: Console) -> None:
    """Names of all tenants."""
    console.names(console.admin.get("/admin/v2/tenants"))


@tenants.command("create")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True, help="Role that may administer it. Repeat for several.")
@click.option("--allowed-cluster", "clusters", multiple=True, help="Region it may use. Repeat. Default: all.")
@with_console
def tenants_create(console: Console, tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...]) -> None:
    """Create TENANT."""
    allowed = list(clusters) or console.admin.get("/admin/v2/clusters")
    body = {"adminRoles": list(roles), "allowedClusters": allowed}
    console.admin.request("PUT", f"/admin/v2/tenants/{part(tenant)}", body=body)
    console.done(f"created tenant {tenant}")


@tenants.command("delete")
@click.argument("tenant")
@force_option
@with_console
def tenants_delete(console: Console, tenant: str, force: bool) -> None:
    """Delete TENANT, which must have no namespaces."""
    console.admin.request("DELETE", f"/admin/v2/tenants/{part(tenant)}", forced(force))
    console.done(f"deleted tenant {tenant}")


@click.group()
def namespaces() -> None:
    """Namespaces: topics that share policies."""


@namespaces.command("list")
@click.argument("tenant")
@with_console
def namespaces_list(console: Console, tenant: str) -> None:
    """Namespaces of TENANT."""
    console.names(console.admin.get(f"/admin/v2/namespaces/{part(tenant)}"))


@namespaces.command("create")
@click.argument("namespace", type=namespace_name)
@click.option("--cluster", "clusters", multiple=True, help="Region to replicate to. Repeat for several.")
@with_console
def namespaces_create(console: Console, namespace: str, clusters: tuple[str, ...]) -> None:
    """Create NAMESPACE, written TENANT/NAME."""
    body = {"replication_clusters": list(clusters)} if clusters else {}
    console.admin.request("PUT", namespace_path(namespace), body=body)
    console.done(f"created namespace {namespace}")


@namespaces.command("set-clusters")
@click.argument("namespace", type=namespace_name)
@click.argument("clusters", nargs=-1, required=True)
@with_console
def namespaces_set_clusters(console: Console, namespace: str, clusters: tuple[str, ...]) -> None:
    """Replicate NAMESPACE to exactly these CLUSTERS."""
    console.admin.request("POST", f"{namespace_path(namespace)}/replication", body=list(clusters))
    console.done(f"{namespace} is replicated to {', '.join(clusters)}")


@click.group()
def topics() -> None:
    """Topics of a namespace."""


@topics.command("list")
@click.argument("namespace", type=namespace_name, default="public/default")
@with_console
def topics_list(console: Console, namespace: str) -> None:
    """Topics of NAMESPACE. Partitions are listed each on its own, as they are stored."""
    tenant, _, name = namespace.partition("/")
    console.names(sorted(console.admin.get(f"/admin/v2/persistent/{part(tenant)}/{part(name)}")))


@topics.command("create")
@click.argument("topic", type=topic_name)
@click.option("--partitions", type=click.IntRange(min=1), help="Make it partitioned.")
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
@with_console
def topics_delete(console: Console, topic: TopicName, force: bool) -> None:
    """Delete TOPIC with all its messages, and all partitions of a partitioned one."""
    path = f"{topic.path}/partitions" if partition_count(console, topic) else topic.path
    console.admin.request("DELETE", path, forced(force))
    console.done(f"deleted {topic}")


@topics.command("stats")
@click.argument("topic", type=topic_name)
@click.option("--internal", is_flag=True, help="Ledgers and cursors instead.")
@with_console
def topics_stats(console: Console, topic: TopicName, internal: bool) -> None:
    """Counters of TOPIC, its producers, subscriptions and replicators."""
    partitioned = partition_count(console, topic) > 0
    last = ("partitioned-internalStats" if partitioned else "internalStats") if internal else ""
    console.tree(console.admin.get(f"{topic.path}/{last or ('partitioned-stats' if partitioned else 'stats')}"))


@topics.command("status")
@click.argument("topic", type=topic_name)
@with_console
def topics_status(console: Console, topic: TopicName) -> None:
    """How far the other regions have the messages of TOPIC that were published in this one.

    What is "not there" is stored in this region and not in that one. If it is in no other region either, it is lost
    with this region's disk. Exit code 0: every region is connected and nothing is held up or missing. 1: not so.

    \b
      meridian topics status orders --url http://127.0.0.1:8090
    """
    last = "partitioned-stats?perPartition=false" if partition_count(console, topic) > 0 else "stats"
    found = console.admin.get(f"{topic.path}/{last}")
    links, missing = found["replication"], found["meridian"]["missing"]
    if console.as_json:
        console.tree({"regions": links, "missing": missing})
    else:
        click.echo(table(standing.LINKS, standing.link_rows(links)))
        for remote, link in sorted(links.items()):
            if link["lastError"] and (link["hold"] or not link["connected"]):
                say(f"{remote}: {link['lastError']}")
        for gap in missing:
            say(gap["detail"])
    if missing or any(link["hold"] or not link["connected"] for link in links.values()):
        raise SystemExit(NO)


@topics.command("partitions")
@click.argument("topic", type=topic_name)
@click.option("--grow-to", type=click.IntRange(min=1), help="Add partitions up to this number. They never shrink.")
@with_console
def topics_partitions(console: Console, topic: TopicName, grow_to: int | None) -> None:
    """How many partitions TOPIC has; 0 when it is not partitioned."""
    if grow_to is not None:
        console.admin.request("POST", f"{topic.path}/partitions", body=grow_to)
        console.done(f"{topic} has {grow_to} partitions")
    else:
        console.tree(partition_count(console, topic))


@topics.command("translate-id")
@click.argument("topic", type=topic_name)
@click.argument("message_id", metavar="LEDGER:ENTRY")
@click.option("--from", "source", required=True, metavar="REGION", help="The region in which the message has this id.")
@with_console
def topics_translate_id(console: Console, topic: TopicName, message_id: str, source: str) -> None:
    """The id here of the message of TOPIC that another region calls LEDGER:ENTRY.

    A message has another id in every region; its origin leads from one to the other. For a partitioned topic, name the
    partition.

    \b
      meridian topics translate-id orders 890635205029889:7 --from us-east --url http://127.0.0.1:8090
    """
    path = f"/meridian/v1/topics/{topic.below}/messageid/translate"
    answer = console.admin.get(path, {"from": source, "id": message_id})
    console.tree({"id": answer["id"], "region": answer["region"], "origin": answer["origin"]})


@topics.command("accept-gap")
@click.argument("topic", type=topic_name)
@click.option("--origin", required=True, metavar="REGION", help="The region whose entries are missing.")
@click.option("--up-to", "upto", required=True, metavar="LEDGER:ENTRY", help="The last one missing, as shown.")
@click.option("--force", is_flag=True, help="Although a region that may have them cannot be asked.")
@with_console
def topics_accept_gap(console: Console, topic: TopicName, origin: str, upto: str, force: bool) -> None:
    """Accept that messages of TOPIC from another region never come to this one, and go on behind them.

    For when ``topics status`` says that entries are missing and in no region any more. They are recorded as dropped,
    cause "lost", for every subscription in this region. For a partitioned topic, name the partition.

    \b
      meridian topics status orders
      meridian topics accept-gap orders --origin us-east --up-to 890635205029889:7
    """
    path = f"/meridian/v1/topics/{topic.below}/gaps/accept"
    told = console.admin.request("POST", path, body={"origin": origin, "upto": upto, "force": force})
    if console.as_json:
        console.tree(told)
    else:
        say(f"entries of {origin} after {told['after']} up to {told['upto']} are given up in {told['region']}")
        say(f"recorded as dropped for: {', '.join(told['subscriptions']) or 'no subscription, as there is none'}")


def partition_count(console: Console, topic: TopicName) -> int:
    """Partitions of a topic; 0 when it has none or does not exist (then the next request says so)."""
    answer: Any = console.admin.get(f"{topic.path}/partitions")
    return int(answer.get("partitions", 0)) if isinstance(answer, dict) else 0


@click.group()
def regions() -> None:
    """Regions that this one knows."""


@regions.command("list")
@with_console
def regions_list(console: Console) -> None:
    """Names and addresses, as every Pulsar tool can ask them."""
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
    """Whether consumers may come back to this region: its links to the others, its topics, and what it may lack.

    Exit code 0: every link is up, every topic is open, filled and replicates, and what was acknowledged elsewhere while
    this region was away is known here. 1: not so; what is missing is told. A region that falls silent counts as up for
    ten seconds.

    \b
      meridian regions status --url http://127.0.0.1:8090
    """
    found = console.admin.get("/meridian/v1/regions")
    if console.as_json:
        console.tree(found)
    else:
        say(*standing.links_of(found))
    if standing.wrong_links(found):
        raise SystemExit(NO)


@regions.command("wait")
@click.option("--ready", is_flag=True, required=True, help="Until consumers may come back: see `regions status`.")
@click.option(
    "--timeout", "seconds", type=click.FloatRange(min=0), default=60, show_default=True, help="Seconds to wait."
)
@with_console
def regions_wait(console: Console, ready: bool, seconds: float) -> None:  # noqa: ARG001 - names what is waited for
    """Wait until this region is ready: after a restart, before its consumers come back.

    Exit code 0: it is. 1: not by then; what is missing is told. 2: it did not answer.

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
            missing = standing.wrong_links(admin.get("/meridian/v1/regions"))
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
