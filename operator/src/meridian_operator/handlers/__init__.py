# SPDX-License-Identifier: Apache-2.0
"""Thin kopf handlers: they receive events from Kubernetes and write the results."""
