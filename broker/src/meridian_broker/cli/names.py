# SPDX-License-Identifier: Apache-2.0
"""Names as users type them, and their admin paths.

A topic may be typed ``orders``, ``tenant/namespace/orders`` or ``persistent://tenant/namespace/orders``; all three are
converted to the last form, with tenant ``public`` and namespace ``default`` as defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import click


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic's full name in its parts."""

    domain: str
    tenant: str
    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.topic}"

    @property
    def path(self) -> str:
        """``/admin/v2/persistent/tenant/namespace/topic``, each part quoted."""
        return f"/admin/v2/{self.below}"

    @property
    def below(self) -> str:
        """The same without the prefix, for the paths under ``/meridian/v1``."""
        return f"{self.domain}/{part(self.tenant)}/{part(self.namespace)}/{part(self.topic)}"


def part(text: str) -> str:
    """One segment of a URL's path; a slash inside it is quoted too."""
    return quote(text, safe="")


def topic_name(text: str) -> TopicName:
    """A topic on the command line.

    :raises click.BadParameter: it is not one.
    """
    domain, found, rest = text.partition("://")
    if not found:
        domain, rest = "persistent", text
    parts = rest.split("/", 2)
    if not found and len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
        raise click.BadParameter(
            f"{text!r} is not a topic: write NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME"
        )
    return TopicName(domain, *parts)


def namespace_name(text: str) -> str:
    """``tenant/namespace`` on the command line.

    :raises click.BadParameter: it is not one.
    """
    tenant, _, namespace = text.partition("/")
    if not tenant or not namespace or "/" in namespace:
        raise click.BadParameter(f"{text!r} is not a namespace: write TENANT/NAMESPACE")
    return text


def namespace_path(namespace: str) -> str:
    """``/admin/v2/namespaces/tenant/namespace`` with both parts quoted."""
    tenant, _, name = namespace.partition("/")
    return f"/admin/v2/namespaces/{part(tenant)}/{part(name)}"
