# SPDX-License-Identifier: Apache-2.0
"""Names of topics: ``persistent://tenant/namespace/name``, short forms, partitions.

Clients may leave out the domain, and the tenant with the namespace: ``name`` is ``persistent://public/default/name``,
``t/n/name`` is ``persistent://t/n/name``. Partition 3 of a partitioned topic is a topic of its own called
``name-partition-3``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from meridian_broker.bounds.clients import TOPIC_NAME_CHARACTERS
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
DOMAINS: Final = frozenset({PERSISTENT, NON_PERSISTENT})
DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

_ENTITY: Final = re.compile(r"(?!\.\.?\Z)[-=:.\w]+", re.ASCII)
"""Not ``.`` and ``..``: HTTP clients remove them from a path."""
_PARTITION: Final = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class TopicName(NamedTuple):
    """The full name of a topic. Create it with ``parse`` or ``of``, which validate."""

    domain: str
    tenant: str
    namespace: str
    local_name: str
    """The last part, with the partition suffix if there is one."""

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def partition(self) -> int:
        """Index of the partition this names, -1 if it names none."""
        match = _PARTITION.search(self.local_name)
        return int(match[1]) if match else -1

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this is a partition of, or the topic itself."""
        match = _PARTITION.search(self.local_name)
        return self._replace(local_name=self.local_name[: match.start()]) if match else self

    def with_partition(self, index: int) -> TopicName:
        """Partition ``index`` of this topic.

        :raises ValueError: the index is negative, or this is a partition already.
        """
        if index < 0:
            raise ValueError(f"{index} is not the index of a partition")
        if self.partition >= 0:
            raise ValueError(f"{self} is a partition already")
        return self._replace(local_name=f"{self.local_name}-partition-{index}")


def of(tenant: str, namespace: str, local_name: str, domain: str = PERSISTENT) -> TopicName:
    """A topic from its parts, as in a path of the admin API.

    :raises InvalidTopicNameError: a part is not valid.
    """
    if domain not in DOMAINS:
        raise InvalidTopicNameError(f"{domain!r} is not a domain: a topic is persistent:// or non-persistent://")
    for what, name in (("tenant", tenant), ("namespace", namespace)):
        if not _ENTITY.fullmatch(name):
            raise InvalidTopicNameError(f"{name!r} is not a valid {what} name: expected letters, digits and - = : . _")
    if not local_name.strip() or "/" in local_name or _CONTROL.search(local_name):
        raise InvalidTopicNameError(
            f"{local_name!r} is not a topic name: it is blank or holds a / or a control character"
        )
    if _PARTITION.match(local_name):
        raise InvalidTopicNameError(f"{local_name!r} is a partition of a topic without a name")
    topic = TopicName(domain, tenant, namespace, local_name)
    if len(str(topic)) > TOPIC_NAME_CHARACTERS:
        raise InvalidTopicNameError(
            f"a topic name of {len(str(topic))} characters; the limit is {TOPIC_NAME_CHARACTERS}"
        )
    return topic


@lru_cache(maxsize=4096)
def parse(text: str) -> TopicName:
    """Any form a client may write, completed. Recent results are cached: regions name topics in every message.

    :raises InvalidTopicNameError: not a topic name; the message shows the text.
    """
    domain, separator, rest = text.partition("://")
    parts = (rest if separator else text).split("/")
    if not separator:
        domain = PERSISTENT
        if len(parts) == 1:
            return of(DEFAULT_TENANT, DEFAULT_NAMESPACE, parts[0])
    if len(parts) == 4 and domain in DOMAINS:
        raise InvalidTopicNameError(
            f"{text!r} has four parts: names that contain a cluster are from Pulsar 1.x; write tenant/namespace/name"
        )
    if len(parts) != 3:
        raise InvalidTopicNameError(
            f"{text!r} is not a topic name: write name, tenant/namespace/name or persistent://tenant/namespace/name"
        )
    return of(parts[0], parts[1], parts[2], domain)


def parse_namespace(text: str) -> tuple[str, str]:
    """``"tenant/namespace"`` -> the two.

    :raises InvalidTopicNameError: anything else.
    """
    tenant, separator, namespace = text.partition("/")
    if not separator or not _ENTITY.fullmatch(tenant) or not _ENTITY.fullmatch(namespace):
        raise InvalidTopicNameError(f"{text!r} is not a namespace: write tenant/namespace")
    return tenant, namespace


def in_path(topic: str) -> str:
    """A full name as in URLs of the admin API: ``domain/tenant/namespace/topic``, each part quoted."""
    domain, _, below = topic.partition("://")
    return "/".join(quote(part, safe="") for part in (domain, *below.split("/", 2)))
