# SPDX-License-Identifier: Apache-2.0
"""Web pages opened on the broker's machine can read nothing from the broker and change nothing."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest
from support.brokers.broker_process import BrokerProcess

SETTINGS = {
    "advertisedAddress": "Broker.example.org",
    "advertisedListeners": "inside:pulsar://10.0.0.1:6650,inside:http://inside.example.org:8080",
    "webServiceAllowedHosts": "proxy.example.org, other.example.org",
    "allowAutoTopicCreationType": "partitioned",
}
TOPIC = "/admin/v2/persistent/public/default/page/partitions"


def ask(broker: BrokerProcess, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", broker.http_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "localhost",
            "LOCALHOST:1",
            "me.localhost",
            "broker",
            "10.1.2.3",
        ),
        *(
            "broker.example.org",
            "BROKER.example.org.:80",
            "inside.example.org",
            "proxy.example.org",
            "other.example.org",
        ),
    ],
)
def test_the_names_of_a_broker(broker: BrokerProcess, host: str) -> None:
    assert ask(broker, "GET", "/admin/v2/clusters", {"Host": host})[0] == 200


@pytest.mark.parametrize("host", ["rebind.evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"])
def test_a_foreign_name_that_resolves_to_this_machine_is_refused(broker: BrokerProcess, host: str) -> None:
    for path in ("/admin/v2/clusters", "/metrics"):
        status, text = ask(broker, "GET", path, {"Host": host})
        assert status == 421
        assert "webServiceAllowedHosts" in text
    assert ask(broker, "GET", "/admin/v2/brokers/ready", {"Host": host})[0] == 200


@pytest.mark.parametrize(
    "says", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}]
)
def test_a_page_of_another_site_creates_nothing_by_reading(broker: BrokerProcess, says: dict[str, str]) -> None:
    page = {"Host": "localhost"} | says
    assert ask(broker, "GET", f"{TOPIC}?checkAllowAutoCreation=true", page)[0] == 403
    assert ask(broker, "GET", TOPIC, page)[0] == 404
    assert ask(broker, "DELETE", TOPIC, {"Host": "localhost", "Origin": "http://evil.example"})[0] == 403


def test_tools_still_create_topics_by_reading(broker: BrokerProcess) -> None:
    for says in ({"Host": "localhost"}, {"Host": "localhost", "Sec-Fetch-Site": "none"}):
        path = TOPIC.replace("page", f"tool-{len(says)}")
        assert ask(broker, "GET", f"{path}?checkAllowAutoCreation=true", says)[0] == 200
