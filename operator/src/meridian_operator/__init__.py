# SPDX-License-Identifier: Apache-2.0
"""Meridian's Kubernetes operator.

Four kinds of custom resource declare the desired state; the brokers' admin REST API reports the actual state. For each
object the operator observes every region that the object names, computes a plan (a pure function that returns typed
changes), applies it and writes what it observed to the status. It never touches a region's metadata store.

    api       one typed model per kind, from which the CRDs' schemas, defaults and rules are generated
    plan      what to change: pure functions
    regions   the brokers' admin REST API, and the tokens for it
    handlers  kopf: what happens on events from Kubernetes
    kube      the operator's own requests to Kubernetes: statuses, Events, the Lease
    process   what surrounds the handlers: leader election, metrics and logs
"""
