# SPDX-License-Identifier: Apache-2.0
"""Paths in the admin APIs, from full names."""

from __future__ import annotations


def topic_path(topic: str) -> str:
    """Path of a topic in Pulsar's API."""
    return f"/admin/v2/{topic.replace('://', '/')}"


def subscription_path(topic: str, subscription: str = "s") -> str:
    """Path of a subscription in Meridian's own API."""
    return f"/meridian/v1/subscriptions/{topic.replace('://', '/')}/{subscription}"
