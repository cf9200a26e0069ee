# SPDX-License-Identifier: Apache-2.0
"""The installation's settings: the regions, and which namespaces may manage topics of which tenants.

Objects in the cluster cannot extend them. Tokens are sent to the addresses listed here and nowhere else. If two entries
have the same name or the same address, the operator does not start: it cannot know which of them is right.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from meridian_operator.api.fields import Model, RegionName

ALL_TENANTS: Final = "*"
DEFAULT_FILE: Final = "default"
"""Name of the file with the token, or certificate authorities, of all regions without their own."""
Name = Annotated[str, Field(min_length=1, max_length=256)]
VerifierName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")]


class RegionSettings(Model):
    """A region."""

    url: str = Field(
        pattern=r"^https?://[^/\s?#@]+$",
        max_length=512,
        description="URL of its admin API without a path: http://host:port.",
    )
    token_secret: str = Field(
        default="",
        pattern=r"^([-a-z0-9]{1,63}/[-.a-z0-9]{1,253})?$",
        description="NAMESPACE/NAME of the Secret with the token that the region issues. Empty: it is in a file.",
    )
    token_issuer: str = Field(
        default="",
        max_length=512,
        description="NAMESPACE/NAME of the region's service account that writes that Secret; shown in messages.",
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
    verifiers: Annotated[list[VerifierName], Field(max_length=16)] = Field(
        default_factory=lambda: ["default"], description="Names of the verifiers there whose verdicts count."
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

    @model_validator(mode="after")
    def _no_region_has_the_name_of_the_default_files(self) -> Self:
        if DEFAULT_FILE in self.regions:
            raise ValueError(f"no region can be named {DEFAULT_FILE}: its token would be sent to regions without one")
        return self

    def allows(self, namespace: str, topic: str) -> bool:
        """May objects in a namespace manage a topic?"""
        return self.allows_tenant(namespace, tenant_of(topic))

    def allows_tenant(self, namespace: str, tenant: str) -> bool:
        """May objects in a namespace manage all topics of a tenant; ``*``: of all tenants?"""
        tenants = self.tenants_by_namespace.get(namespace, ())
        return ALL_TENANTS in tenants or tenant in tenants


def parsed(text: str) -> Settings:
    """Settings from JSON.

    :raises ValueError: ``text`` is not JSON, has a key twice, or is not valid.
    """
    return Settings.model_validate(json.loads(text, object_pairs_hook=_once))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. By itself ``json`` would silently keep the last of two equal keys."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is listed twice")
        found[key] = value
    return found


def tenant_of(topic: str) -> str:
    """The tenant in a full topic name."""
    return topic.partition("://")[2].partition("/")[0]
