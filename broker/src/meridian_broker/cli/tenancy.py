# SPDX-License-Identifier: Apache-2.0
"""``meridian tenants|namespaces VERB``. Every region has its own, so these commands go to several regions."""

from __future__ import annotations

import click

from meridian_broker.cli import permissions
from meridian_broker.cli.asking import confirm, yes_option
from meridian_broker.cli.deployment import Deployment, Outcome, at_option, here_option, in_each, lacking
from meridian_broker.cli.names import namespace_name, namespace_path, part
from meridian_broker.cli.output import Console, forced, with_console
from meridian_broker.cli.rest import AdminRefused


@click.group()
def tenants() -> None:
    """Tenants: the owners of namespaces."""


@tenants.command("list")
@with_console
def tenants_list(console: Console) -> None:
    """Names of all tenants in this region."""
    console.names(console.admin.get("/admin/v2/tenants"))


@tenants.command("create")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True, help="Role that may administer it. Repeatable.")
@click.option(
    "--allowed-cluster", "clusters", multiple=True, help="Region it may use. Repeatable. Default: all regions."
)
@here_option
@at_option
@with_console
def tenants_create(
    console: Console,
    tenant: str,
    roles: tuple[str, ...],
    clusters: tuple[str, ...],
    only_here: bool,
    addresses: tuple[str, ...],
) -> None:
    """Create TENANT in every region that it may use."""
    deployment = Deployment.of(console.admin, addresses)
    allowed = list(clusters) or list(deployment.known)
    body = {"adminRoles": list(roles), "allowedClusters": allowed}
    admins = deployment.admins({deployment.here} if only_here else {deployment.here, *allowed})
    outcome = in_each(admins, lambda admin: admin.request("PUT", f"/admin/v2/tenants/{part(tenant)}", body=body))
    _created(console, f"tenant {tenant}", outcome)


@tenants.command("delete")
@click.argument("tenant")
@click.option("--force", is_flag=True, help="Delete its namespaces and all their topics, too.")
@yes_option
@with_console
def tenants_delete(console: Console, tenant: str, force: bool, yes: bool) -> None:
    """Delete TENANT in this region. It must have no namespaces, or --force deletes them with their topics."""
    confirm(yes, f"Delete tenant {tenant}{', its namespaces and all their topics' if force else ''}?")
    console.admin.request("DELETE", f"/admin/v2/tenants/{part(tenant)}", forced(force))
    console.done(f"deleted tenant {tenant} in the region at {console.admin.url}")


@click.group()
def namespaces() -> None:
    """Namespaces: topics that share policies."""


@namespaces.command("list")
@click.argument("tenant")
@with_console
def namespaces_list(console: Console, tenant: str) -> None:
    """Namespaces of TENANT in this region."""
    console.names(console.admin.get(f"/admin/v2/namespaces/{part(tenant)}"))


@namespaces.command("create")
@click.argument("namespace", type=namespace_name)
@click.option(
    "--cluster", "clusters", multiple=True, help="Region to replicate to. Repeatable. Default: this region only."
)
@here_option
@at_option
@with_console
def namespaces_create(
    console: Console, namespace: str, clusters: tuple[str, ...], only_here: bool, addresses: tuple[str, ...]
) -> None:
    """Create NAMESPACE, written TENANT/NAME, in this region and in every --cluster.

    Its tenant must exist in each of them; `meridian tenants create` creates it there.

    \b
      meridian tenants create shop
      meridian namespaces create shop/orders --cluster us-east --cluster us-west
    """
    deployment = Deployment.of(console.admin, addresses)
    admins = deployment.admins({deployment.here} if only_here else {deployment.here, *clusters})
    tenant = namespace.partition("/")[0]
    if missing := lacking(admins, f"/admin/v2/tenants/{part(tenant)}"):
        raise AdminRefused(
            404,
            f"nothing was created: tenant {tenant} does not exist in {', '.join(missing)}. "
            f"`meridian tenants create {tenant}` creates it in every region",
        )
    body = {"replication_clusters": list(clusters)} if clusters else {}
    outcome = in_each(admins, lambda admin: admin.request("PUT", namespace_path(namespace), body=body))
    _created(console, f"namespace {namespace}", outcome)


@namespaces.command("set-clusters")
@click.argument("namespace", type=namespace_name)
@click.argument("clusters", nargs=-1, required=True)
@here_option
@at_option
@with_console
def namespaces_set_clusters(
    console: Console, namespace: str, clusters: tuple[str, ...], only_here: bool, addresses: tuple[str, ...]
) -> None:
    """Replicate NAMESPACE to exactly these CLUSTERS.

    The list is set in this region, in each of CLUSTERS, and in those that leave the list. NAMESPACE must exist in each
    of CLUSTERS; otherwise nothing is changed.
    """
    deployment = Deployment.of(console.admin, addresses)
    path = f"{namespace_path(namespace)}/replication"
    before = console.admin.get(path)
    admins = deployment.admins({deployment.here} if only_here else {deployment.here, *clusters})
    if missing := lacking(admins, path):
        everywhere = " ".join(f"--cluster {name}" for name in clusters)
        raise AdminRefused(
            404,
            f"nothing was changed: namespace {namespace} does not exist in {', '.join(missing)}. Create it there: "
            f"meridian namespaces create {namespace} {everywhere}",
        )
    if not only_here:
        admins |= deployment.admins({*before} & {*deployment.known} - {*clusters, deployment.here})
    outcome = in_each(admins, lambda admin: admin.request("POST", path, body=list(clusters)))
    sentence = f"{namespace} is replicated to {', '.join(clusters)} (set in {', '.join(outcome.done)})"
    outcome.check(sentence)
    console.done(sentence, regions=outcome.done)


for about_permissions in (permissions.of_namespace, permissions.grant_in_namespace, permissions.revoke_in_namespace):
    namespaces.add_command(about_permissions)


def _created(console: Console, what: str, outcome: Outcome) -> None:
    """
    :raises AdminRefused: it exists everywhere already, or a region refused.
    :raises AdminUnreachable: a region did not answer.
    """
    exists = f"{what} exists already in {', '.join(outcome.existed)}"
    sentence = f"created {what} in {', '.join(outcome.done)}" if outcome.done else exists
    if outcome.done and outcome.existed:
        sentence += f"; it exists already in {', '.join(outcome.existed)}"
    outcome.check(sentence)
    if not outcome.done:
        raise AdminRefused(409, exists)
    console.done(sentence, regions=outcome.done)
