# SPDX-License-Identifier: Apache-2.0
"""Errors of catalog requests. Each is named for the situation, and its message says what to do."""

from __future__ import annotations

from meridian_broker.metadata.store import MetadataError


class CatalogError(MetadataError):
    """A request that the catalog refuses; the store itself is fine."""


class NotFound(CatalogError):
    """The object of the request, or something it needs, does not exist."""


class AlreadyExists(CatalogError):
    """The object to be created exists already."""


class NotEmpty(CatalogError):
    """It cannot be deleted while something uses it or lies in it."""


class Invalid(CatalogError):
    """The request itself is wrong: a bad name, a bad value, a change that is never possible."""


class QuotaReached(CatalogError):
    """There is no room for it. Delete something, or raise the limit."""


class Contended(CatalogError):
    """Others kept changing the same thing for as long as we tried. Trying again later is right."""
