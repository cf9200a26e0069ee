# SPDX-License-Identifier: Apache-2.0
"""The installation's settings: the regions, and which namespaces may manage topics of which tenants.

Objects in the cluster cannot extend them. Tokens are sent to the addresses listed here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from meridian_operator.api.shared import Model, RegionName

ALL_TENANTS: Final = "*"
Name = Annotated[str, Field(min_length=1, max_length=256)]


class RegionSettings(Model):
    """A region."""

    url: str = Field(
        pattern=r"^https?://[^/\s?#@]+$",
        max_length=512,
        description="URL of its admin API without a path: http://host:port.",
    )


class Settings(Model):
    """The operator's settings."""

    regions: Annotated[dict[RegionName, RegionSettings], Field(max_length=64)] = Field(default_factory=dict)
    tenants_by_namespace: dict[Name, list[Name]] = Field(
        default_factory=dict,
        description="Kubernetes namespace -> tenants whose topics its objects may manage; *: all. Unlisted: none.",
    )
    verdicts_namespace: str = Field(
        default="", max_length=63, description="Namespace where verifiers write their verdicts. Empty: no verifier."
    )

    @model_validator(mode="after")
    def _each_region_is_somewhere_else(self) -> Self:
        names: dict[str, str] = {}
        for name, region in self.regions.items():
            if (other := names.setdefault(region.url, name)) != name:
                raise ValueError(
                    f"regions {other} and {name} have the same URL {region.url}: each region needs its own admin API"
                )
        return self

    def allows(self, namespace: str, topic: str) -> bool:
        """May objects in a namespace manage a topic?"""
        tenants = self.tenants_by_namespace.get(namespace, ())
        return ALL_TENANTS in tenants or tenant_of(topic) in tenants


def tenant_of(topic: str) -> str:
    """The tenant in a full topic name."""
    return topic.partition("://")[2].partition("/")[0]
