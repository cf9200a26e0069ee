# SPDX-License-Identifier: Apache-2.0
"""The ledger store's port, a topic's log on it, and the index between local positions and origins. Pure.

Other rooms import only these modules of it::

    backoff  block_times  chapters  damage  entry  finding  followed  holes  index  labels  log  notifying  objects
    offloaded.cache  offloaded.copies  offloaded.offloading  offloaded.outside  offloaded.records  offloaded.storage
    offloaded.table  pending  periodic  reading  retired_indexes  scheduling  storage  store  throttling  times
    under_way  view
"""
