# SPDX-License-Identifier: Apache-2.0
"""What whoever installs the operator tells it: which regions there are, and who may speak of which tenants.

No object in the cluster can add to that. Tokens go to the addresses that stand here, and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from meridian_operator.api.shared import Model, RegionName

ALL_TENANTS: Final = "*"
Name = Annotated[str, Field(min_length=1, max_length=256)]


class RegionSettings(Model):
    """One region."""

    url: str = Field(
        pattern=r"^https?://[^/\s?#@]+$", max_length=512, description="Its admin API, without a path: http://host:port."
    )


class Settings(Model):
    """All of them."""

    regions: Annotated[dict[RegionName, RegionSettings], Field(max_length=64)] = Field(default_factory=dict)
    tenants_by_namespace: dict[Name, list[Name]] = Field(
        default_factory=dict,
        description="Namespace of Kubernetes -> tenants whose topics its objects may name; *: all. Others: none.",
    )
    verdicts_namespace: str = Field(
        default="", max_length=63, description="Where verifiers write their verdicts. Empty: there is no verifier."
    )

    @model_validator(mode="after")
    def _each_region_is_somewhere_else(self) -> Self:
        names: dict[str, str] = {}
        for name, region in self.regions.items():
            if (other := names.setdefault(region.url, name)) != name:
                raise ValueError(f"regions {other} and {name} are both at {region.url}: each has its own admin API")
        return self

    def allows(self, namespace: str, topic: str) -> bool:
        """May the objects of a namespace say anything about a topic?"""
        tenants = self.tenants_by_namespace.get(namespace, ())
        return ALL_TENANTS in tenants or tenant_of(topic) in tenants


def tenant_of(topic: str) -> str:
    """The tenant in a topic's full name."""
    return topic.partition("://")[2].partition("/")[0]
