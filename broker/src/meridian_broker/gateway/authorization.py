# SPDX-License-Identifier: Apache-2.0
"""Whether clients may do what they ask for, once authorization is on (``authorizationEnabled``).

``metadata.authorizing`` decides; this module knows the roles' permissions. Everything is in memory, so each answer is
about this moment: a permission that was revoked admits no further producer or consumer. Those that are connected stay,
as with Pulsar.

No refusal reveals whether a topic, namespace or tenant exists: it reads the same if it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.gateway.authentication import Authentication
from meridian_broker.metadata.authorizing import RoleFacts, Wish, decide, needed
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.wire.pulsar.errors import AuthorizationError
from meridian_broker.wire.pulsar.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Authorization:
    """See the module's text. Brokers of other regions are not asked about: they are not roles (R7)."""

    authentication: Authentication
    catalog: Catalog
    enabled: bool
    """Without it, every role may look up, produce and consume, and super users alone administer."""

    def may(self, role: str, wish: Wish, topic: TopicName) -> bool:
        """Whether it may do that with a topic."""
        return not self.enabled or decide(wish, self._facts(role, topic.namespace_name, topic))

    def may_in(self, role: str, wish: Wish, namespace: str) -> bool:
        """Whether it may do that in ``tenant/namespace``."""
        return not self.enabled or decide(wish, self._facts(role, namespace))

    def administers(self, role: str, tenant: str) -> bool:
        """Whether it may change what belongs to a tenant, but not the tenant itself."""
        is_super_user = self.authentication.is_super_user(role)
        is_admin = self.enabled and self._is_admin_of(role, tenant)
        return decide(Wish.ADMINISTER, RoleFacts(is_super_user=is_super_user, is_tenant_admin=is_admin))

    def check(self, role: str, wish: Wish, topic: TopicName) -> None:
        """:raises AuthorizationError: it may not."""
        if not self.may(role, wish, topic):
            raise AuthorizationError(_refusal(role, wish, str(topic)))

    def check_in(self, role: str, wish: Wish, namespace: str) -> None:
        """:raises AuthorizationError: it may not."""
        if not self.may_in(role, wish, namespace):
            raise AuthorizationError(_refusal(role, wish, namespace))

    def _facts(self, role: str, namespace: str, topic: TopicName | None = None) -> RoleFacts:
        return RoleFacts(
            is_super_user=self.authentication.is_super_user(role),
            is_tenant_admin=self._is_admin_of(role, namespace.partition("/")[0]),
            replicates=topic is not None and self._replicates(role, topic),
            held=self.catalog.permissions.held(role, namespace, topic),
        )

    def _is_admin_of(self, role: str, tenant: str) -> bool:
        record = self.catalog.tenant(tenant)
        return record is not None and role in record.admin_roles

    def _replicates(self, role: str, topic: TopicName) -> bool:
        regions = self.catalog.pulsar_regions()
        if not regions:
            return False
        records = (self.catalog.cluster(region) for region in regions & self.catalog.regions(topic))
        return any(record is not None and record.replicator_role == role for record in records)


def _refusal(role: str, wish: Wish, what: str) -> str:
    return f"role {role} may not {wish.value} {what}: {needed(wish)}"
