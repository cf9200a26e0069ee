# SPDX-License-Identifier: Apache-2.0
"""``regionsFile``: what it lists, and the errors for an unusable one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meridian_broker.server.regions_file import clusters_in
from meridian_broker.server.setting_fields import SettingsError


def test_it_lists_regions(tmp_path: Path) -> None:
    one = {"name": "us", "service_url": "pulsar://h:1", "admin_url": "http://h:2", "admin_url_tls": "https://h:3"}
    (tmp_path / "r.json").write_text(json.dumps({"regions": [one], "metadata": "embedded"}))
    (found,) = clusters_in(tmp_path / "r.json").items()
    assert found[0] == "us"
    assert (found[1].broker_service_url, found[1].service_url) == ("pulsar://h:1", "http://h:2")
    assert (found[1].broker_service_url_tls, found[1].service_url_tls) == ("", "https://h:3")


@pytest.mark.parametrize("service_url", ["pulsar://h:1", "pulsar://h:1,h:3"])
def test_a_region_with_several_brokers_has_the_addresses_of_all(tmp_path: Path, service_url: str) -> None:
    brokers = [{"broker_id": f"b{n}", "service_url": f"pulsar://h:{n}", "admin_url": f"http://h:8{n}"} for n in (1, 3)]
    one = {"name": "us", "service_url": service_url, "admin_url": "http://h:81", "brokers": [*brokers, "odd"]}
    (tmp_path / "r.json").write_text(json.dumps({"regions": [one]}))
    found = clusters_in(tmp_path / "r.json")["us"]
    assert (found.broker_service_url, found.service_url) == ("pulsar://h:1,h:3", "http://h:81,h:83")
    assert found.broker_service_url_tls == found.service_url_tls == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not JSON"),
        ("[]", 'has no list "regions"'),
        ('{"regions": 3}', 'has no list "regions"'),
        ('{"regions": [{"name": "us", "service_url": "pulsar://h:1"}]}', "region 1 in"),
        ('{"regions": [{"name": "us", "service_url": "pulsar://h:1"}]}', "has no admin_url"),
        ('{"regions": ["us"]}', "has no name and no service_url and no admin_url"),
    ],
)
def test_what_is_wrong_with_it_is_reported(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "r.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"^regionsFile: ") as refused:
        clusters_in(file)
    assert said in str(refused.value)
    assert str(file) in str(refused.value)
