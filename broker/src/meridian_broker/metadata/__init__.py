# SPDX-License-Identifier: Apache-2.0
"""The metadata store's port, its records, and the region's catalog made from them. Pure.

Other rooms import only these modules of it::

    actions  authorizing  catalog  deletions  errors  keys  limits  noting  partitioned_topics  permissions
    policies  policy_table  policy_values  records  rules  schema_catalog  shadow_needs  shadow_topics  store
    sync.applying  sync.catching_up  sync.choice  sync.conflicts  sync.converging  sync.digests  sync.events
    sync.followed_outbox  sync.kept  sync.known  sync.marks  sync.pace  sync.parked  sync.paths  sync.publishing
    sync.reading  sync.recording  sync.stamped  sync.standing  sync.synchronizer  topic_catalog  topic_listing
    topic_records  view
"""
