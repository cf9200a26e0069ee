# SPDX-License-Identifier: Apache-2.0
"""Meridian's Kubernetes operator.

Four kinds of custom resource say what shall be; the brokers' admin REST says what is. For one object the operator
observes every region it names, makes a plan (a list of typed changes; a pure function), applies it and writes what it
found into the status. It never touches a region's metadata store.

    api       one typed model per kind: schema, defaults and rules of the CRDs are made from it
    plan      what is to be done: pure
    regions   the brokers' REST, and which regions there are
    handlers  kopf: what Kubernetes tells us, and what we answer
"""
