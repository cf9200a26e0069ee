# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a request to the catalog. Each is named for the situation, and says what to do."""

from __future__ import annotations

from meridian_broker.metadata.store import MetadataError


class CatalogError(MetadataError):
    """A request that the catalog refuses; the store itself is fine."""


class NotFound(CatalogError):
    """What the request is about does not exist, or something it needs does not."""


class AlreadyExists(CatalogError):
    """What should be made is there already."""


class NotEmpty(CatalogError):
    """It cannot be deleted while something uses it or lies in it."""


class Invalid(CatalogError):
    """The request itself is wrong: a bad name, a bad value, a change that is never possible."""


class QuotaReached(CatalogError):
    """There is no room for it. Deleting something makes room, or a larger limit."""


class Contended(CatalogError):
    """Others kept changing the same thing for as long as we tried. Trying again later is right."""
