# SPDX-License-Identifier: Apache-2.0
"""Topics, subscriptions, dispatchers, and the service that holds all of a broker. Pure.

Other rooms import only these modules of it::

    backfill.gaps  backfill.joining  backfill.questions  backfill.skipping  compaction.compaction
    compaction.compactor  context  cursors.drops  cursors.ports  cursors.rewinding  directory.patterns
    directory.schemas  directory.watching  dispatch.consumer  dispatch.key_ranges  dispatch.single
    dispatch.types  dispatch_scope.shares  errors  journal.progress_log  journal.subscription_record
    lifecycle.deletion  lifecycle.incarnations  lifecycle.termination  limits  names  nonpersistent.topic
    policies  publishing.access_modes  publishing.admission  publishing.producer  retention.backlog_quotas
    retention.trimming  service.backfill_rounds  service.cold_encoding  service.kinds  service.leased_topics
    service.service  subscriptions.administration  subscriptions.closing  subscriptions.subscription  topic
    validation
"""
