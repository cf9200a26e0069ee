# SPDX-License-Identifier: Apache-2.0
"""``meridian metadata VERB``: metadata that is kept the same in all regions, over the admin REST API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from meridian_broker.cli.asking import confirm, yes_option
from meridian_broker.cli.output import NO, Console, say, with_console

BASE = "/meridian/v1/metadata"


@click.group()
def metadata() -> None:
    """Tenants, namespaces and policies, kept the same in all regions.

    Regions share them once `metadataSyncEventTopic` names a topic in each region; docs/metadata.md explains how.

    \b
      meridian metadata status                     is this region in step? exit code 0: yes
      meridian metadata diff eu-west               what differs from eu-west right now
      meridian metadata conflicts                  what two regions wrote at the same time, and who won
    """


@metadata.command("status")
@with_console
def metadata_status(console: Console) -> None:
    """Show how this region stands with each of the others.

    Exit code 0: nothing waits to be sent or decided, and every region was compared. 1: something is pending; it is
    printed.
    """
    found = console.admin.get(f"{BASE}/status")
    problems = _problems(found)
    if console.as_json:
        console.tree(found)
    else:
        say(*_lines(found), *problems)
    if problems:
        raise SystemExit(NO)


@metadata.command("diff")
@click.argument("region")
@with_console
def metadata_diff(console: Console, region: str) -> None:
    """Compare with REGION now. Exit code 0: equal. 1: what differs is printed, with both states."""
    found = console.admin.get(f"{BASE}/diff", {"region": region})
    _show_differences(console, found)
    if found["count"]:
        raise SystemExit(NO)


@metadata.command("conflicts")
@click.option("--dismiss", metavar="PATH", help="Forget the conflict at this path; its value stays.")
@with_console
def metadata_conflicts(console: Console, dismiss: str | None) -> None:
    """List paths that two regions wrote without knowing of each other: what won, and what was lost.

    Also listed: states whose stamp is in the future (`meridian metadata restamp PATH` ends that), and namespaces that
    are hidden because another region deleted their tenant. Exit code 0: there are none. 1: they are printed.
    """
    if dismiss is not None:
        console.admin.request("DELETE", f"{BASE}/conflicts", {"path": dismiss})
        console.done(f"forgot the conflict at {dismiss}")
        return
    found = console.admin.get(f"{BASE}/conflicts")
    if console.as_json:
        console.tree(found)
    else:
        for one in found["conflicts"]:
            say(f"{one['path']}: {_side(one['won'])} won over {_lost(one['lost'])}")
        for one in found["parked"]:
            say(f"{one['path']}: waits until {one['state']['stamp']}, a stamp in the future")
        for path in found["hidden"]:
            say(f"{path}: hidden, because its tenant was deleted; create the tenant again, or delete the namespace")
    if found["count"] or found["parked"] or found["hidden"]:
        raise SystemExit(NO)


@metadata.command("restamp")
@click.argument("path")
@with_console
def metadata_restamp(console: Console, path: str) -> None:
    """Make this region's state at PATH win in every region, even over a stamp in the future."""
    found = console.admin.request("POST", f"{BASE}/restamp", body={"path": path})
    console.done(f"{path} has stamp {found['state']['stamp']} in generation {found['state']['generation']}")


@metadata.command("adopt")
@click.option("--from", "region", required=True, metavar="REGION", help="The other region.")
@click.option("--keep", is_flag=True, help="Keep this region's values instead of the other one's.")
@click.option("--dry-run", is_flag=True, help="Only list what differs.")
@yes_option
@with_console
def metadata_adopt(console: Console, region: str, keep: bool, dry_run: bool, yes: bool) -> None:
    """Decide what differed from REGION when metadata was first synchronized.

    Where both regions have a value and the two differ, REGION's (or, with --keep, this region's) counts in every
    region. What only one of them has is added to the other and needs no decision.

    \b
      meridian metadata adopt --from us-east --dry-run
      meridian metadata adopt --from us-east
    """
    asked: dict[str, Any] = {"region": region, "dryRun": True}
    if keep:
        asked["side"] = console.admin.get(f"{BASE}/status")["region"]
    found = console.admin.request("POST", f"{BASE}/adopt", body=asked)
    if dry_run:
        _show_differences(console, found)
        return
    confirm(yes, f"Replace {found['differences']} values in all regions with those of {found['side']}?")
    done = console.admin.request("POST", f"{BASE}/adopt", body=asked | {"dryRun": False})
    console.done(f"{done['decided']} values are now those of {done['side']}")


def _show_differences(console: Console, found: Mapping[str, Any]) -> None:
    if console.as_json:
        console.tree(found)
        return
    for one in found["paths"]:
        say(one["path"], f"  {found['region']}: {_state(one['here'])}", f"  {found['other']}: {_state(one['there'])}")
    say(f"{found['count']} paths differ, {found['differences']} of them with a value on both sides")


def _state(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "nothing"
    return f"{'deleted' if one['deleted'] else one['value']} ({one['stamp']})"


def _side(one: Mapping[str, Any]) -> str:
    if one["deleted"] and not one["region"]:
        return "a deletion, which may have been earlier or later,"
    return f"{'the deletion' if one['deleted'] else one['value']} of {one['region']}"


def _lost(one: Mapping[str, Any]) -> str:
    asked = f", which {one['caller']} had asked for" if one.get("caller") else ""
    return _side(one) + asked


def _lines(found: Mapping[str, Any]) -> list[str]:
    if not found["enabled"]:
        return [f"{found['region']} does not share its metadata: metadataSyncEventTopic is not set"]
    lines = [f"{found['region']} shares {', '.join(found['scopes'])} through {found['topic']}"]
    if "peers" in found:
        lines.append(
            f"published {found['published']}, applied {found['applied']}, stale {found['stale']}, "
            f"conflicts {found['conflicts']}, waiting to be sent {found['outbox']}"
        )
        away = [region for region, peer in found["peers"].items() if peer.get("expelled")]
        lines += [f"{region} was away for longer than deletions are remembered" for region in away]
    return lines


def _problems(found: Mapping[str, Any]) -> list[str]:
    problems = [found["refusal"]] if found["refusal"] else []
    problems += found.get("problems", [])
    if found.get("outbox"):
        problems.append(f"{found['outbox']} changes are waiting to be sent")
    for region, peer in found.get("peers", {}).items():
        if peer["problem"]:
            problems.append(f"{region}: {peer['problem']}")
    if found.get("conflicts"):
        problems.append(f"{found['conflicts']} conflicts: see `meridian metadata conflicts`")
    return problems
