# SPDX-License-Identifier: Apache-2.0
"""Implementations of the ports: local log files, BookKeeper, SQLite, etcd, S3, memory.

Other rooms import only these modules of it::

    bookkeeper.context  bookkeeper.registered  bookkeeper.certificates  bookkeeper.store  bookkeeper.zones  clock
    etcd.address  etcd.keys  etcd.metadata  etcd.securing  pinned  local.files  local.store  outside  s3.objects
    s3.place  sqlite.metadata
"""
