# SPDX-License-Identifier: Apache-2.0
"""Clusters, tenants, namespaces and brokers over real HTTP: paths, statuses and JSON as Pulsar's tools expect them."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.broker_process import BrokerProcess, http

NS = "/admin/v2/namespaces"


def test_clusters(broker: BrokerProcess) -> None:
    path = "/admin/v2/clusters/far"
    assert broker.http("GET", path).status == 404
    assert broker.http("POST", path, {}).status == 404
    data = {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650", "peerClusterNames": ["solo"]}
    assert broker.http("PUT", path, data).status == 204
    assert broker.http("PUT", path, data).status == 409
    assert broker.http("GET", "/admin/v2/clusters").json == ["far", "solo"]
    assert broker.http("GET", path).json.items() >= data.items()
    assert broker.http("POST", path, data | {"serviceUrl": "http://far:81"}).status == 204
    assert broker.http("GET", path).json["serviceUrl"] == "http://far:81"
    assert broker.http("PUT", "/admin/v2/tenants/uses-far", {"allowedClusters": ["far"]}).status == 204
    refused = broker.http("DELETE", path)
    assert refused.status == 412
    assert "uses-far" in refused.reason
    assert broker.http("DELETE", "/admin/v2/tenants/uses-far").status == 204
    assert broker.http("DELETE", path).status == 204
    assert broker.http("DELETE", path).status == 404
    assert broker.http("DELETE", "/admin/v2/clusters/solo").status == 412


def test_tenants(broker: BrokerProcess) -> None:
    path = "/admin/v2/tenants/shop"
    assert broker.http("GET", path).status == 404
    assert broker.http("PUT", path, {"adminRoles": ["boss"], "allowedClusters": ["solo"]}).status == 204
    assert broker.http("PUT", path, {"allowedClusters": ["solo"]}).status == 409
    assert broker.http("GET", path).json == {"adminRoles": ["boss"], "allowedClusters": ["solo"]}
    assert broker.http("POST", path, {"adminRoles": [], "allowedClusters": ["solo"]}).status == 204
    assert broker.http("GET", path).json["adminRoles"] == []
    assert broker.http("PUT", "/admin/v2/tenants/none", {"allowedClusters": []}).status == 412
    assert broker.http("PUT", "/admin/v2/tenants/none", {"allowedClusters": ["nowhere"]}).status == 412
    assert "shop" in broker.http("GET", "/admin/v2/tenants").json
    assert broker.http("PUT", f"{NS}/shop/one", {}).status == 204
    assert broker.http("DELETE", path).status == 409
    assert broker.http("DELETE", f"{path}?force=true").status == 204
    assert broker.http("GET", path).status == 404
    assert broker.http("GET", f"{NS}/shop").status == 404


def test_namespaces(broker: BrokerProcess) -> None:
    path = f"{NS}/public/mine"
    assert broker.http("GET", path).status == 404
    assert broker.http("PUT", path, {"replication_clusters": ["elsewhere"]}).status == 403
    assert broker.http("PUT", path).status == 204
    assert broker.http("PUT", path).status == 409
    assert broker.http("GET", f"{NS}/public").json == ["public/default", "public/mine"]
    policies = broker.http("GET", path).json
    assert policies["replication_clusters"] == ["solo"]
    assert policies["bundles"] == broker.http("GET", f"{path}/bundles").json
    assert broker.http("PUT", f"{NS}/nobody/mine").status == 404
    assert broker.http("PUT", "/admin/v2/persistent/public/mine/t").status == 204
    assert broker.http("GET", f"{path}/topics").json == ["persistent://public/mine/t"]
    assert broker.http("GET", f"{path}/topics?mode=NON_PERSISTENT").json == []
    refused = broker.http("DELETE", path)
    assert refused.status == 409
    assert broker.http("PUT", f"{path}/unload").status == 204
    assert broker.http("PUT", "/admin/v2/persistent/public/mine/p/partitions", 3).status == 204
    assert broker.http("DELETE", f"{path}?force=true").status == 204
    assert broker.http("GET", path).status == 404
    assert broker.http("GET", f"{path}/topics").status == 404


@pytest.mark.parametrize(
    ("policy", "value", "wrong"),
    [
        ("retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}, {"retentionTimeInMinutes": 5}),
        ("messageTTL", 3600, -1),
        ("deduplication", True, "perhaps"),
        ("maxProducersPerTopic", 3, -1),
    ],
)
def test_a_policy_is_set_read_and_removed(broker: BrokerProcess, policy: str, value: Any, wrong: Any) -> None:
    broker.http("PUT", f"{NS}/public/policies")
    path = f"{NS}/public/policies/{policy}"
    assert broker.http("GET", path).status == 204
    assert broker.http("POST", path, value).status == 204
    assert broker.http("GET", path).json == value
    assert broker.http("POST", path, wrong).status == 412
    assert broker.http("GET", path).json == value
    assert broker.http("DELETE", path).status == 204
    assert broker.http("GET", path).status == 204
    assert broker.http("GET", f"{NS}/public/nowhere/{policy}").status == 404


def test_replication_clusters_and_quotas(broker: BrokerProcess) -> None:
    path = f"{NS}/public/placed"
    broker.http("PUT", path)
    broker.http("PUT", "/admin/v2/clusters/second", {})
    assert broker.http("POST", f"{path}/replication", ["solo", "second"]).status == 403
    broker.http("POST", "/admin/v2/tenants/public", {"allowedClusters": ["solo", "second"]})
    assert broker.http("POST", f"{path}/replication", ["solo", "second"]).status == 204
    assert broker.http("GET", f"{path}/replication").json == ["second", "solo"]
    assert broker.http("POST", f"{path}/replication", []).status == 412
    assert broker.http("POST", f"{path}/replication", "solo").status == 412
    assert broker.http("POST", f"{path}/allowedClusters", ["solo", "second"]).status == 204
    assert broker.http("GET", f"{path}/allowedClusters").json == ["second", "solo"]
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    assert broker.http("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota).status == 204
    assert broker.http("POST", f"{path}/backlogQuota?backlogQuotaType=wrong", quota).status == 412
    assert broker.http("GET", f"{path}/backlogQuotaMap").json == {"destination_storage": quota}
    assert broker.http("DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage").status == 204
    assert broker.http("GET", f"{path}/backlogQuotaMap").json == {}


def test_brokers(broker: BrokerProcess) -> None:
    own = f"127.0.0.1:{broker.http_port}"
    assert broker.http("GET", "/admin/v2/brokers").json == [own]
    assert broker.http("GET", "/admin/v2/brokers/solo").json == [own]
    assert broker.http("GET", "/admin/v2/brokers/unheard-of").status == 404
    assert broker.http("GET", "/admin/v2/brokers/leaderBroker").json == {
        "brokerId": own,
        "serviceUrl": broker.admin_url,
    }
    for path in ("/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        assert broker.http("GET", path).text == "ok"
    assert broker.http("GET", "/status.html").text == "OK"
    assert broker.http("GET", "/admin/v2/brokers/version").text[0].isdigit()
    assert broker.http("GET", "/admin/v2/brokers/configuration/runtime").json["clusterName"] == "solo"
    assert broker.http("GET", "/admin/v2/brokers/configuration/values").json == {}
    assert "allowAutoTopicCreation" in broker.http("GET", "/admin/v2/brokers/configuration").json


def test_lookup(broker: BrokerProcess) -> None:
    found = broker.http("GET", "/lookup/v2/topic/persistent/public/default/anything").json
    assert found["brokerUrl"] == found["nativeUrl"] == broker.service_url
    assert found["httpUrl"] == broker.admin_url
    bundle = broker.http("GET", "/lookup/v2/topic/persistent/public/default/anything/bundle").text
    low, high = (int(border, 16) for border in bundle.split("_"))
    assert high - low in (0x40000000, 0x3FFFFFFF)
    namespace = "/admin/v2/namespaces/public/default"
    assert bundle in broker.http("GET", f"/admin/v2/brokers/solo/127.0.0.1:{broker.http_port}/ownedNamespaces").text
    assert broker.http("PUT", f"{namespace}/{bundle}/unload").status == 204
    assert broker.http("PUT", f"{namespace}/0x00000000_0x00000001/unload").status == 404
    assert broker.http("PUT", f"{namespace}/{bundle}/unload?destinationBroker=elsewhere:1").status == 412
    assert broker.http("PUT", f"{namespace}/{bundle}/split").status == 501
    assert broker.http("GET", f"{namespace}/{bundle}/topicHashPositions?topics=x").json == {
        "namespace": "public/default",
        "bundle": bundle,
        "topicHashPositions": {},
    }
    report = broker.http("GET", "/admin/v2/broker-stats/load-report").json
    assert (report["loadReportType"], report["pulsarServiceUrl"]) == ("LocalBrokerData", broker.service_url)
    assert report["cpu"]["usage"] > 0 and report["memory"]["limit"] > report["memory"]["usage"] > 0
    assert report["numTopics"] == sum(one["topics"] for one in report["lastStats"].values())
    assert broker.http("GET", "/lookup/v2/topic/persistent/public/nowhere/anything").status == 404
    assert broker.http("GET", "/lookup/v2/topic/non-persistent/public/nowhere/anything").status == 404
    assert broker.http("GET", "/lookup/v2/topic/non-persistent/public/default/anything").json == found


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("PUT", "/admin/v2/tenants/bad", b"{", 400),
        ("PUT", "/admin/v2/tenants/bad", b"[" * 100_000, 400),
        ("PUT", "/admin/v2/tenants/bad", b"\xff\xfe", 400),
        ("PUT", "/admin/v2/tenants/bad", b"[]", 412),
        ("PUT", "/admin/v2/tenants/bad", b'{"adminRoles": 7, "allowedClusters": ["solo"]}', 412),
        ("PUT", "/admin/v2/tenants/ba%20d", b'{"allowedClusters": ["solo"]}', 412),
        ("PUT", "/admin/v2/tenants/bad", b" " * (3 << 20), 413),
        ("PUT", "/admin/v2/persistent/public/default/x/partitions", b'"many"', 400),
        ("PUT", "/admin/v2/persistent/public/default/x/partitions", b"0", 406),
        ("PUT", "/admin/v2/persistent/public/default/x/partitions", b"1000000", 406),
        ("PUT", "/admin/v2/persistent/public/default/a%2Fb", b"", 412),
        ("PUT", "/admin/v2/non-persistent/public/default/x/properties", b"{}", 405),
        ("GET", "/admin/v2/nothing/here", None, 404),
        ("PATCH", "/admin/v2/tenants", b"{}", 405),
        ("DELETE", "/admin/v2/persistent/public/default/x?force=maybe", None, 400),
    ],
)
def test_a_bad_request_is_answered_with_one_sentence(
    broker: BrokerProcess, method: str, path: str, raw: bytes | None, status: int
) -> None:
    refused = broker.http(method, path, raw=raw)
    assert refused.status == status, refused.text
    assert set(refused.json) == {"reason"}
    assert "Traceback" not in refused.reason
    assert broker.http("GET", "/admin/v2/brokers/health").status == 200


def test_a_web_page_cannot_change_anything(broker: BrokerProcess) -> None:
    url = f"{broker.admin_url}{NS}/public/default/unload"
    headers = {"Origin": "https://somewhere.example"}
    assert http("PUT", url, headers=headers).status == 403
    assert http("PUT", url).status == 204
    assert http("GET", f"{broker.admin_url}/admin/v2/clusters", headers=headers).status == 200
