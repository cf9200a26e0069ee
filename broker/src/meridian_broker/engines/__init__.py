# SPDX-License-Identifier: Apache-2.0
"""What implements the ports: local log files, BookKeeper, SQLite, etcd, memory.

Other rooms import only these modules of it::

    clock  etcd.address  etcd.metadata  etcd.securing  held  local.files  local.readonly  local.stats  local.store
    sqlite.metadata
"""
