# SPDX-License-Identifier: Apache-2.0
"""Where the metadata store keeps ownership. Everything is below one path, so that one watch sees changes in order."""

from __future__ import annotations

from typing import Final

from meridian_broker.metadata.keys import LOCAL, escape, unescape
from meridian_broker.ownership.bundles import Bundle

ROOT: Final = f"{LOCAL}ownership/"
BROKERS: Final = f"{ROOT}brokers/"
OWNERS: Final = f"{ROOT}owners/"
BUNDLES: Final = f"{ROOT}bundles/"
WISHES: Final = f"{ROOT}wishes/"
FENCE: Final = f"{ROOT}fence"
"""The fence of the newest term in the region."""


def broker(name: str) -> str:
    return BROKERS + escape(name)


def owner(bundle: Bundle) -> str:
    return f"{OWNERS}{_namespace(bundle.namespace)}/{bundle.range}"


def wish(bundle: Bundle) -> str:
    """The broker that should own a bundle next."""
    return f"{WISHES}{_namespace(bundle.namespace)}/{bundle.range}"


def bundles(namespace: str) -> str:
    """The borders of the bundles of a namespace, ``tenant/namespace``."""
    return BUNDLES + _namespace(namespace)


def namespace_of(path: str) -> str:
    """The namespace in a path of ``bundles``."""
    tenant, _, short = path.removeprefix(BUNDLES).partition("/")
    return f"{unescape(tenant)}/{unescape(short)}"


def bundle_of(path: str) -> Bundle | None:
    """The bundle in a path of ``owner`` or ``wish``; None: it is another kind of path."""
    try:
        tenant, short, places = path.removeprefix(OWNERS).removeprefix(WISHES).split("/")
        lower, upper = (int(text, 16) for text in places.split("_"))
    except ValueError:
        return None
    return Bundle(f"{unescape(tenant)}/{unescape(short)}", lower, upper)


def _namespace(name: str) -> str:
    tenant, _, short = name.partition("/")
    return f"{escape(tenant)}/{escape(short)}"
