# SPDX-License-Identifier: Apache-2.0
"""``meridian namespaces|topics grant|revoke|permissions``: what roles may do.

A grant is made in every region of the namespace, like everything else that regions keep by themselves. Regions that
share permissions make one change of it. An admin role of the tenant may not list the regions, so it grants in one
region after the other (``--only-here``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import click

from meridian_broker.cli.deployment import Deployment, Outcome, at_option, here_option, in_each
from meridian_broker.cli.names import TopicName, namespace_name, namespace_path, part, topic_name
from meridian_broker.cli.output import Console, with_console
from meridian_broker.cli.rest import Admin

ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")

C = TypeVar("C", bound=Callable[..., Any])


def _actions(command: C) -> C:
    return click.argument("actions", nargs=-1, required=True, type=click.Choice(ACTIONS))(command)


@click.command("permissions")
@click.argument("namespace", type=namespace_name)
@with_console
def of_namespace(console: Console, namespace: str) -> None:
    """Roles that have permissions on NAMESPACE in this region, and which."""
    _show(console, namespace_path(namespace))


@click.command("grant")
@click.argument("namespace", type=namespace_name)
@click.argument("role")
@_actions
@here_option
@at_option
@with_console
def grant_in_namespace(
    console: Console, namespace: str, role: str, actions: tuple[str, ...], only_here: bool, addresses: tuple[str, ...]
) -> None:
    """Permit ROLE exactly these ACTIONS on all topics of NAMESPACE, in place of what it had there.

    In every region of NAMESPACE; admin roles of its tenant use --only-here, region by region. Brokers enforce it if
    their setting authorizationEnabled is on.

    \b
      meridian namespaces grant shop/orders billing consume
    """
    path = namespace_path(namespace)
    outcome = _in_regions(console, namespace, addresses, only_here, partial(_grant, path, role, actions))
    _report(console, f"role {role} may {_listed(actions)} in {namespace}", outcome)


@click.command("revoke")
@click.argument("namespace", type=namespace_name)
@click.argument("role")
@here_option
@at_option
@with_console
def revoke_in_namespace(
    console: Console, namespace: str, role: str, only_here: bool, addresses: tuple[str, ...]
) -> None:
    """Revoke all that ROLE was permitted in NAMESPACE. It keeps what it was permitted on single topics.

    In every region of NAMESPACE. Clients that are connected stay until they close.
    """
    path = namespace_path(namespace)
    outcome = _in_regions(console, namespace, addresses, only_here, partial(_revoke, path, role))
    _report(console, f"role {role} has no permission in {namespace}", outcome)


@click.command("permissions")
@click.argument("topic", type=topic_name)
@with_console
def of_topic(console: Console, topic: TopicName) -> None:
    """Roles that have permissions on TOPIC or its namespace in this region, and which."""
    _show(console, topic.path)


@click.command("grant")
@click.argument("topic", type=topic_name)
@click.argument("role")
@_actions
@here_option
@at_option
@with_console
def grant_on_topic(
    console: Console, topic: TopicName, role: str, actions: tuple[str, ...], only_here: bool, addresses: tuple[str, ...]
) -> None:
    """Permit ROLE exactly these ACTIONS on TOPIC and its partitions, in place of what it had there.

    In every region of its namespace. TOPIC need not exist yet.

    \b
      meridian topics grant shop/orders/invoices billing produce consume
    """
    asked = partial(_grant, topic.path, role, actions)
    outcome = _in_regions(console, _namespace(topic), addresses, only_here, asked)
    _report(console, f"role {role} may {_listed(actions)} on {topic}", outcome)


@click.command("revoke")
@click.argument("topic", type=topic_name)
@click.argument("role")
@here_option
@at_option
@with_console
def revoke_on_topic(console: Console, topic: TopicName, role: str, only_here: bool, addresses: tuple[str, ...]) -> None:
    """Revoke all that ROLE was permitted on TOPIC. It keeps what it was permitted in its namespace.

    In every region of its namespace. Clients that are connected stay until they close.
    """
    asked = partial(_revoke, topic.path, role)
    outcome = _in_regions(console, _namespace(topic), addresses, only_here, asked)
    _report(console, f"role {role} has no permission on {topic} itself", outcome)


def _namespace(topic: TopicName) -> str:
    return f"{topic.tenant}/{topic.namespace}"


def _listed(actions: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(actions))


def _show(console: Console, path: str) -> None:
    found: dict[str, list[str]] = console.admin.get(f"{path}/permissions")
    if console.as_json:
        console.tree(found)
    else:
        rows = [{"role": role, "actions": ", ".join(actions) or "none"} for role, actions in found.items()]
        console.rows(("role", "actions"), rows)


def _grant(path: str, role: str, actions: tuple[str, ...], admin: Admin) -> object:
    return admin.request("POST", f"{path}/permissions/{part(role)}", body=list(dict.fromkeys(actions)))


def _revoke(path: str, role: str, admin: Admin) -> object:
    return admin.request("DELETE", f"{path}/permissions/{part(role)}")


def _in_regions(
    console: Console, namespace: str, addresses: tuple[str, ...], only_here: bool, ask: Callable[[Admin], object]
) -> Outcome:
    """
    :raises AdminRefused: a region is not known.
    :raises AdminUnreachable: no address can be used.
    """
    if only_here:
        return in_each({f"the region at {console.admin.url}": console.admin}, ask)
    deployment = Deployment.of(console.admin, addresses)
    clusters: list[str] = console.admin.get(f"{namespace_path(namespace)}/replication")
    return in_each(deployment.admins({deployment.here, *clusters}), ask)


def _report(console: Console, sentence: str, outcome: Outcome) -> None:
    """
    :raises AdminRefused: a region refused.
    :raises AdminUnreachable: none refused, and one did not answer.
    """
    done = f"{sentence} (set in {', '.join(outcome.done)})"
    outcome.check(done)
    console.done(done, regions=outcome.done)
