# SPDX-License-Identifier: Apache-2.0
"""Between regions: entries, progress, snapshots, and leases on what only one may dispatch. Pure.

Other rooms import only these modules of it::

    entries.producing  entries.pulsar_replicator  entries.replicator  entries.replicator_status
    entries.shadow_replicator  entries.source
    leases.manager  leases.messages  leases.quorums  leases.reconfiguration  leases.request  leases.times
    leases.voter  peers  progress.codec  progress.exchange  progress.lag  progress.messages  progress.statuses
    progress.waits  snapshots.controller  snapshots.ports
"""
