# SPDX-License-Identifier: Apache-2.0
"""Errors of catalog requests. Each is named for the situation, and its message says what to do."""

from __future__ import annotations

from meridian_broker.metadata.store import MetadataError


class CatalogError(MetadataError):
    """A request that the catalog refuses; the store itself is fine."""


class NotFound(CatalogError):
    """The object of the request, or something it needs, does not exist."""


class AlreadyExists(CatalogError):
    """The object to create exists already."""


class NotEmpty(CatalogError):
    """It cannot be deleted while something uses it or is in it."""


class Invalid(CatalogError):
    """The request itself is wrong: a bad name, a bad value, an impossible change."""


class QuotaReached(CatalogError):
    """There is no room for it. Delete something, or raise the limit."""


class Overtaken(CatalogError):
    """What the change was to be based on has changed, so nothing was written. Look again, and decide again."""


class Contended(CatalogError):
    """Other writers kept changing the same value during all attempts. Retry later."""
