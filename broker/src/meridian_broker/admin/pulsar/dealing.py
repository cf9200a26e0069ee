# SPDX-License-Identifier: Apache-2.0
"""The bundles into which a namespace's topics fall."""

from __future__ import annotations

from typing import Any

from meridian_broker.admin.http.state import AdminState
from meridian_broker.ownership.bundles import Bundles


async def shown(admin: AdminState, namespace: str) -> dict[str, Any]:
    """A namespace's bundles as Pulsar shows them. :raises NotFound: there is no such namespace."""
    bundles = await of(admin, namespace)
    return {"boundaries": bundles.texts(), "numBundles": len(bundles.borders) - 1}


async def of(admin: AdminState, namespace: str) -> Bundles:
    """The bundles of a namespace. :raises NotFound: there is no such namespace."""
    record = await admin.catalog.namespaces.get(namespace)
    if admin.owner is not None:
        return await admin.owner.bundles(namespace)
    return Bundles.equal(namespace, record.bundles)


def known(admin: AdminState, namespace: str) -> Bundles | None:
    """The same if known without reading anything; otherwise None."""
    if admin.owner is not None:
        return admin.owner.view.bundles.get(namespace)
    record = admin.catalog.namespace(namespace)
    return None if record is None else Bundles.equal(namespace, record.bundles)
