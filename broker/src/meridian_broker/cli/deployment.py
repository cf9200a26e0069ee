# SPDX-License-Identifier: Apache-2.0
"""The other regions of a deployment, for commands that change something in several of them.

Each region keeps its own tenants and namespaces, so changing them takes one request to each region. Addresses come from
the cluster records of the region in ``--url``, or from ``--at``. A token is sent only to addresses that the user typed:
otherwise anyone who may edit one region's cluster records could collect the administrators' tokens of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import click

from meridian_broker.cli.names import part
from meridian_broker.cli.rest import Admin, AdminRefused, AdminUnreachable

at_option = click.option(
    "--at",
    "addresses",
    multiple=True,
    metavar="REGION=URL",
    help="Admin address of another region, if not the one on record; required with a token. Repeatable.",
)
here_option = click.option("--only-here", is_flag=True, help="Only in the region of --url.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one request sent to several regions."""

    done: list[str]
    existed: list[str]
    """They answered that it exists already."""
    problems: dict[str, AdminRefused | AdminUnreachable]

    def check(self, sentence: str) -> None:
        """
        :raises AdminRefused: a region refused.
        :raises AdminUnreachable: none refused, and one did not answer.
        """
        if not self.problems:
            return
        reasons = "; ".join(f"not in {region}: {error}" for region, error in sorted(self.problems.items()))
        text = f"{sentence}; {reasons}" if self.done else f"nothing was changed; {reasons}"
        refused = next((error for error in self.problems.values() if isinstance(error, AdminRefused)), None)
        raise AdminUnreachable(text) if refused is None else AdminRefused(refused.status, text)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The regions, as the one in ``--url`` knows them."""

    here: str
    known: tuple[str, ...]
    own: Admin
    addresses: Mapping[str, str]

    @classmethod
    def of(cls, own: Admin, addresses: Iterable[str] = ()) -> Deployment:
        """
        :param addresses: ``REGION=URL`` each.
        :raises click.BadParameter: one of them is something else.
        """
        found = own.get("/meridian/v1/regions")
        return cls(found["region"], tuple(one["name"] for one in found["regions"]), own, _addresses(addresses))

    def admins(self, regions: Collection[str]) -> dict[str, Admin]:
        """Clients for the admin API of each of these regions.

        :raises AdminRefused: a region is not known.
        :raises AdminUnreachable: no address can be used.
        """
        return {region: self._admin(region) for region in sorted(regions)}

    def _admin(self, region: str) -> Admin:
        if region == self.here:
            return self.own
        if region not in self.known:
            raise AdminRefused(
                404, f"{self.here} knows no region {region}: `meridian regions list` shows those that it knows"
            )
        if region in self.addresses:
            return replace(self.own, url=self.addresses[region])
        cluster = self.own.get(f"/admin/v2/clusters/{part(region)}")
        scheme = "https" if self.own.url.startswith("https://") else "http"
        url = cluster.get("serviceUrlTls" if scheme == "https" else "serviceUrl")
        if not url:
            raise AdminUnreachable(f"{self.here} has no {scheme} address of {region} on record: give --at {region}=URL")
        if self.own.token is not None:
            raise AdminUnreachable(
                f"a token is sent only to addresses that you give: add --at {region}=URL (on record in "
                f"{self.here}: {url}), or --only-here"
            )
        return replace(self.own, url=url)


def in_each(admins: Mapping[str, Admin], ask: Callable[[Admin], object]) -> Outcome:
    """Send one request to each region, and go on where one fails."""
    outcome = Outcome([], [], {})
    for region, admin in admins.items():
        try:
            ask(admin)
        except AdminRefused as refusal:
            if refusal.status == 409:
                outcome.existed.append(region)
            else:
                outcome.problems[region] = refusal
        except AdminUnreachable as silence:
            outcome.problems[region] = silence
        else:
            outcome.done.append(region)
    return outcome


def lacking(admins: Mapping[str, Admin], path: str) -> list[str]:
    """Regions that answer 404.

    :raises AdminUnreachable: a region did not answer; it is named.
    """
    missing = []
    for region, admin in admins.items():
        try:
            admin.get(path)
        except AdminRefused as refusal:
            if refusal.status != 404:
                raise AdminRefused(refusal.status, f"{region}: {refusal}") from None
            missing.append(region)
        except AdminUnreachable as silence:
            raise AdminUnreachable(f"{region} cannot be asked, so nothing was changed: {silence}") from None
    return missing


def _addresses(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for one in given:
        region, _, url = one.partition("=")
        if not region or not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"{one!r}: expected REGION=http://HOST:PORT", param_hint="--at")
        found[region] = url
    return found
