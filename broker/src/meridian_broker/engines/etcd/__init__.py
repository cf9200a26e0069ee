# SPDX-License-Identifier: Apache-2.0
"""The etcd engine: a region's metadata in its own etcd. Import ``engines.etcd.metadata`` only when it is used."""
