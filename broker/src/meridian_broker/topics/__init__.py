# SPDX-License-Identifier: Apache-2.0
"""Topics, subscriptions, dispatchers, and the service that holds all of a broker. Pure.

Other rooms import only these modules of it::

    backfill.gaps  backfill.joining  backfill.questions  backfill.skipping  compaction.compaction
    compaction.compactor  context  cursors.drops  cursors.ports  cursors.rewinding  directory.listing
    directory.patterns  directory.schemas  directory.watching  dispatch.consumer  dispatch.key_ranges
    dispatch.single  dispatch.types  dispatch_scope.origin_streams  errors  journal.changes  journal.subscription_record
    lifecycle.garbage  lifecycle.labels  lifecycle.parts  lifecycle.termination  lifecycle.unfinished
    lifecycle.unneeded_copies  limits  names  nonpersistent.topic  policies  ports  publishing.access_modes
    publishing.admission  publishing.from_source  publishing.producer  reopening  retention.backlog_quotas
    retention.trimming
    service.answering  service.backfill_rounds  service.closing  service.cold_encoding  service.creation
    service.exchange_host  service.incarnations  service.kinds  service.leased_topics  service.offloading
    service.owned_topics  service.partition_growth  service.registry  service.removal  service.rounds
    service.service  service.shadow_topics  service.subscribing  service.traffic  service.unused  snapshots.host
    subscriptions.administration  subscriptions.alike  subscriptions.closing  subscriptions.damaged_records
    subscriptions.subscription  topic  validation
"""
