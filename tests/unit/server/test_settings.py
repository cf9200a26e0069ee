# SPDX-License-Identifier: Apache-2.0
"""Settings: where a value comes from, what is refused with which message, and that the page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.etcd.address import Login
from meridian_broker.replication.snapshots.ports import SnapshotRules
from meridian_broker.server import settings_page
from meridian_broker.server.settings import BY_KEY, SECTIONS, Settings, SettingsError, load
from meridian_broker.server.settings_network import NetworkSettings
from meridian_broker.server.topic_settings import snapshot_settings
from meridian_broker.topics.snapshots.host import SnapshotSettings

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def refusal(**pairs: str) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.of(pairs)
    return str(caught.value)


def test_the_order_of_sources(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\n\nbrokerServicePort = 1\nwebServicePort=1\nclusterName=from-file\n", encoding="utf-8")
    environment = {"MERIDIAN_brokerServicePort": "2", "MERIDIAN_webServicePort": "2", "PATH": "/bin"}
    settings = load(file, ["brokerServicePort=3"], environment)
    assert settings.network.broker_service_port == 3
    assert settings.network.web_service_port == 2
    assert settings.region.cluster_name == "from-file"
    assert settings.network.max_message_size == 5 * 1024 * 1024


def test_an_unknown_key_is_refused_with_its_source_and_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("clusterName=a\nbrokerServicesPort=1\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=rf"{file}:2: .*'brokerServicesPort'.*did you mean brokerServicePort\?"):
        load(file, [], {})
    with pytest.raises(SettingsError, match=r"MERIDIAN_clustername.*did you mean clusterName\?"):
        load(None, [], {"MERIDIAN_clustername": "a"})
    with pytest.raises(SettingsError, match=r"--set: .*'zzz'.*docs/configuration\.md"):
        load(None, ["zzz=1"], {})


def test_variables_of_other_programs_are_ignored() -> None:
    load(None, [], {"MERIDIAN_URL": "http://x", "MERIDIAN_BROKER_PORT_6650_TCP": "tcp://10.0.0.1:6650"})


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ({"brokerServicePort": "x"}, "a whole number from 0 to 65535"),
        ({"brokerServicePort": "65536"}, "a whole number from 0 to 65535"),
        ({"brokerServicePort": "1_0"}, "a whole number"),
        ({"brokerServicePort": ""}, "a whole number"),
        ({"insecure": "yes"}, "true or false"),
        ({"allowAutoTopicCreationType": "both"}, "partitioned or non-partitioned"),
        ({"dataDirectory": ""}, "a path"),
        ({"clusterName": "a b"}, "letters, digits"),
        ({"clusterName": ""}, "a letter or digit"),
        ({"clusterName": ".."}, "a letter or digit"),
        ({"clusterName": "a" * 65}, "at most 63"),
        ({"metadataStoreUrl": "zk:localhost:2181"}, "sqlite:PATH or etcd:http://HOST:PORT"),
        ({"metadataStoreUrl": "etcd:localhost:2379"}, "sqlite:PATH or etcd:http://HOST:PORT"),
        ({"bindAddress": "localhost"}, "an IP address"),
    ],
)
def test_a_wrong_value_says_what_is_expected(pairs: dict[str, str], expected: str) -> None:
    message = refusal(**pairs)
    assert expected in message
    assert next(iter(pairs)) in message


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::"])
def test_an_address_reachable_by_others_is_refused_unless_insecure(address: str) -> None:
    assert "--insecure" in refusal(bindAddress=address, advertisedAddress="here")
    settings = Settings.of({"bindAddress": address, "advertisedAddress": "here", "insecure": "true"})
    assert settings.advertised_address == "here"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_needs_no_permission(address: str) -> None:
    assert Settings.of({"bindAddress": address}).advertised_address == address


def test_a_wildcard_is_refused_as_an_advertised_address() -> None:
    assert "advertisedAddress" in refusal(bindAddress="0.0.0.0", insecure="true")


def test_a_bad_combination_is_refused_when_built_in_code_too() -> None:
    with pytest.raises(SettingsError):
        Settings(network=NetworkSettings(bind_address="0.0.0.0"))


def test_the_embedded_store_lives_in_the_data_directory_by_default() -> None:
    assert Settings.of({"dataDirectory": "/x"}).metadata_store_url == "sqlite:/x/metadata.sqlite"
    assert Settings.of({"metadataStoreUrl": "etcd:http://h:2379"}).metadata_store_url == "etcd:http://h:2379"


@pytest.mark.parametrize(
    "url",
    ["etcd:http://me:hush@h:2379", "etcd:https://me:hush@h:2379,https://b:2379", "etcd:me:hush@h", "zk:me:hush@h"],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    message = refusal(metadataStoreUrl=url)
    assert "metadataStorePasswordFile" in message
    assert "hush" not in message


@pytest.mark.parametrize(
    "rest",
    [
        *("http://h", "http://h:0", "http://h:99999", "ftp://h:2379", "https://a:2379,http://b:2379", "https://a:1,"),
        *("http://h:2379/path", "http://h:2379?x=1", "http://[::1:2379", ",".join(["http://h:2379"] * 17), ""),
    ],
)
def test_invalid_etcd_addresses(rest: str) -> None:
    assert "metadataStoreUrl" in refusal(metadataStoreUrl=f"etcd:{rest}")


def test_an_etcd_is_reached_with_a_password_and_certificates() -> None:
    etcd = {"metadataStoreUrl": "etcd:https://a:2379,https://[::1]:2379/"}
    files = {
        "metadataStorePasswordFile": "password",
        "metadataStoreTrustCertsFilePath": "ca",
        "metadataStoreCertificateFilePath": "certificate",
        "metadataStoreKeyFilePath": "key",
    }
    login = Settings.of(etcd | files | {"metadataStoreUser": "broker"}).metadata.login
    assert login == Login("broker", *(Path(name) for name in files.values()))
    assert "both or neither" in refusal(**etcd, metadataStoreUser="broker")
    assert "both or neither" in refusal(**etcd, metadataStorePasswordFile="password")
    assert "both or neither" in refusal(**etcd, metadataStoreKeyFilePath="key")
    assert "begins with etcd:" in refusal(metadataStoreUser="broker", metadataStorePasswordFile="password")
    assert "etcd:https" in refusal(metadataStoreUrl="etcd:http://a:2379", metadataStoreTrustCertsFilePath="ca")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the configuration file"):
        load(tmp_path / "absent.conf", [], {})
    (tmp_path / "bad.conf").write_text("just words\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"bad\.conf:1: expected key=value"):
        load(tmp_path / "bad.conf", [], {})
    with pytest.raises(SettingsError, match="--set port: expected key=value"):
        load(None, ["port"], {})


@given(st.dictionaries(st.sampled_from(sorted(BY_KEY)), st.text(max_size=20), max_size=4))
@example({"configurationMetadataSyncEventTopic": "0"})
def test_any_text_gives_settings_or_an_error_that_names_a_key(pairs: dict[str, str]) -> None:
    try:
        settings = Settings.of(pairs)
    except SettingsError as error:
        assert any(key in str(error) for key in pairs)
    else:
        assert Settings.of(settings.pairs()) == settings


def test_every_setting_is_explained() -> None:
    for section, holder in SECTIONS.items():
        documents = settings_page.field_documents(holder)
        missing = [item.key for item in BY_KEY.values() if item.section == section and item.attribute not in documents]
        assert not missing, f"no sentence under {missing} in {holder.__name__}"


def test_the_page_matches_the_classes() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page.render(), "docs/configuration.md is stale: run make docs"


def test_the_id_of_a_broker_among_several() -> None:
    assert Settings.of({}).brokers.id_on_record == "broker-0"
    several = Settings.of({"brokerId": "b.1"}).brokers
    assert (several.is_one_of_several, several.id_on_record) == (True, "b.1")
    assert "brokerId" in refusal(brokerId="a/b")
    assert "choose another" in refusal(brokerId="broker-0")


def test_ledgers_on_bookies_need_an_etcd_and_possible_quorums() -> None:
    etcd = {"metadataStoreUrl": "etcd:http://h:2379", "managedLedgerStorage": "bookkeeper"}
    assert Settings.of(etcd).storage.managed_ledger_storage == "bookkeeper"
    assert "local or bookkeeper" in refusal(managedLedgerStorage="memory")
    assert "metadataStoreUrl" in refusal(managedLedgerStorage="bookkeeper")
    assert "not striped" in refusal(**etcd, managedLedgerDefaultEnsembleSize="5")
    assert "managedLedgerDefaultAckQuorum" in refusal(**etcd, managedLedgerDefaultAckQuorum="4")
    files = {"bookkeeperTLSTrustCertsFilePath": "ca", "bookkeeperTLSCertificateFilePath": "c"}
    assert "both or neither" in refusal(**etcd, **files)
    assert "bookkeeperTLSTrustCertsFilePath" in refusal(
        **etcd, bookkeeperTLSCertificateFilePath="c", bookkeeperTLSKeyFilePath="k"
    )
    tls = Settings.of({**etcd, **files, "bookkeeperTLSKeyFilePath": "k"}).storage.bookie_tls
    assert tls == BookieTls(Path("ca"), Path("c"), Path("k"))
    assert Settings.of(etcd).storage.bookie_tls is None


def test_settings_of_subscription_snapshots_have_pulsars_names() -> None:
    given = Settings.of(
        {
            "enableReplicatedSubscriptions": "false",
            "replicatedSubscriptionsSnapshotFrequencyMillis": "100",
            "replicatedSubscriptionsSnapshotTimeoutSeconds": "2",
            "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": "5",
        }
    )
    assert snapshot_settings(given) == SnapshotSettings(
        enabled=False, rules=SnapshotRules(interval_ms=100, timeout_ms=2000, cached=5)
    )
    assert snapshot_settings(Settings()) == SnapshotSettings(enabled=True, rules=SnapshotRules(1000, 30_000, 30))
