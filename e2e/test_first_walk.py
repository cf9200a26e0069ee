# SPDX-License-Identifier: Apache-2.0
"""One walk: the quickstart as written, then its promises, checked closely with real clients.

The tests build on one another, in order. The first failure ends the walk.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pulsar
import pytest
from clusters import NAMESPACES, ROOT, Cluster
from deleting import CASES, Topics
from earlier import Earlier
from growing import Growing
from imaging import Images
from policies import LOGINS, STRANGER, Policies, only_ours
from restoring import RESTORES, Restoring
from rotating import Connect, Rotation
from sharing import NAMESPACE, TTL, Sharing
from traffic import SEND_TIMEOUT_MS, receive_all

QUICKSTART = ROOT / "docs/quickstart-kubernetes.md"
TOPIC = "persistent://public/default/orders"
PORTS = {"us-east": 30650, "us-west": 30651, "eu-central": 30652}
ADMIN = {region: f"http://meridian-broker.{region}.svc:8080" for region in PORTS}
INSTALLED = {("meridian", "us-east"): 3, ("operator", "meridian-system"): 4}
"""Release -> number of commands in its notes."""
SUBSCRIPTION = "/meridian/v1/subscriptions/persistent/public/default/orders/billing"


@pytest.fixture(scope="module")
def connect(cluster: Cluster) -> Connect:
    """Creates a client of a region, by its address for clients outside the cluster."""
    host = cluster.run("e2e/cluster host").strip()

    def connect(region: str, token: str | Callable[[], str]) -> pulsar.Client:
        return pulsar.Client(
            f"pulsar://{host}:{PORTS[region]}",
            listener_name="external",
            authentication=pulsar.AuthenticationToken(token),
            operation_timeout_seconds=60,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    return connect


@pytest.fixture(scope="module")
def clients(cluster: Cluster, connect: Connect) -> Iterator[dict[str, pulsar.Client]]:
    token = cluster.directory / "tokens/admin.jwt"
    made = {region: connect(region, lambda: token.read_text().strip()) for region in PORTS}
    yield made
    for client in made.values():
        client.close()


def commands() -> list[str]:
    """The ten commands of the quickstart."""
    return re.findall(r"^```sh\n(.*?)\n```$", QUICKSTART.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def section(heading: str) -> list[str]:
    """The commands of the quickstart below a heading, one per line."""
    _, _, rest = QUICKSTART.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    found = re.search(r"^```\n(.*?)\n```$", rest, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def noted(cluster: Cluster, release: str, namespace: str) -> list[str]:
    """The commands that Helm printed when it installed the release."""
    notes = cluster.run(f"helm get notes {release} -n {namespace}")
    behind_labels = re.findall(r"^ +[\w ]+: +((?:kubectl|helm) .*)$", notes, re.MULTILINE)
    return behind_labels + re.findall(r"^kubectl .*<<END\n(?:.*\n)*?END$", notes, re.MULTILINE)


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def call(cluster: Cluster, region: str, method: str, path: str, body: Any = None) -> Any:
    """A call of a region's admin API, from inside the region's pod."""
    program = (
        "import json,sys,urllib.request as u;"
        "a=json.load(sys.stdin);"
        "r=u.Request('http://127.0.0.1:8080'+a['path'],method=a['method'],"
        "data=None if a['body'] is None else json.dumps(a['body']).encode(),"
        "headers={'Authorization':'Bearer '+a['token'],'Content-Type':'application/json'});"
        "print(u.urlopen(r,timeout=30).read().decode() or 'null')"
    )
    token = (cluster.directory / "tokens/admin.jwt").read_text().strip()
    question = json.dumps({"path": path, "method": method, "body": body, "token": token})
    (cluster.directory / "question.json").write_text(question)
    return json.loads(
        cluster.run(
            f'kubectl -n {region} exec -i meridian-broker-0 -- /opt/meridian/bin/python -c "{program}" < question.json'
        )
    )


def test_ten_commands_lead_to_a_failover(cluster: Cluster, images: Images, earlier: Earlier | None) -> None:
    """Follow the quickstart. Once it has built its images, those of the other walks are built in the background."""
    written = commands()
    assert len(written) == 10
    for number, command in enumerate(written, 1):
        print(f"quickstart {number}: {command}")
        cluster.run(command, seconds=900)
        if number == 1:
            [loaded] = re.findall(r"for image in ([\w ]+);", command)
            images.are_loaded(loaded.split())
            images.build_all(cluster, earlier)
    first, second = numbers(cluster.directory / "first.txt"), numbers(cluster.directory / "second.txt")
    assert sorted(first + second) == list(range(1, 1001)), "nothing is missing and nothing came twice"


def test_brokers_waited_for_their_etcd(cluster: Cluster) -> None:
    """All parts of a region start at once; none is restarted because another took longer."""
    for region in ("us-west", "eu-central"):
        pods = json.loads(cluster.run(f"kubectl -n {region} get pods -o json"))["items"]
        restarts = {
            f"{pod['metadata']['name']}/{container['name']}": container["restartCount"]
            for pod in pods
            for container in pod["status"]["containerStatuses"]
        }
        assert restarts and not any(restarts.values()), restarts


def test_etcd_lets_in_the_brokers_of_its_region_only(cluster: Cluster) -> None:
    """An etcd accepts the right certificate with the right password; neither alone, and not another region's."""
    (cluster.directory / "strangers.py").write_text(LOGINS)
    inside = "kubectl -n us-west exec -i meridian-broker-0 -c broker -- /opt/meridian/bin/python -"
    assert cluster.run(f"{inside} < strangers.py").split() == ["True", *["False"] * 4]


def test_an_upgrade_keeps_passwords_and_certificates(cluster: Cluster) -> None:
    kept = "kubectl -n us-west get secret meridian-etcd-login meridian-etcd-tls -o jsonpath='{.items[*].data}'"
    before = cluster.run(kept)
    cluster.run("helm upgrade meridian helm/meridian-region -n us-west --reuse-values --wait --timeout 300s")
    assert cluster.run(kept) == before


def test_a_region_that_is_away_is_told_and_comes_back(cluster: Cluster) -> None:
    def is_told() -> bool:
        status = cluster.get("geotopic/orders")["status"]
        conditions = {one["type"]: one for one in status["conditions"]}
        return (
            conditions["Degraded"]["status"] == "True"
            and "us-east" in conditions["Ready"]["message"]
            and status["regionsReady"] == "2/3"
        )

    cluster.wait(is_told, "the operator to notice that a region is down, and which")
    cluster.run("kubectl -n us-east scale statefulset meridian-broker --replicas=1")
    cluster.run("kubectl -n us-east rollout status statefulset/meridian-broker --timeout=300s")
    cluster.run(
        "kubectl wait --for=condition=Ready --timeout=300s geotopic/orders replicatedsubscription/orders-billing"
    )
    cluster.wait(
        lambda: call(cluster, "us-east", "GET", f"{SUBSCRIPTION}/status")["backlog"] == 0,
        "the region to know what was acknowledged meanwhile",
    )


def test_a_client_inside_the_cluster_is_sent_to_addresses_inside(cluster: Cluster) -> None:
    """A pod of one region publishes to, and consumes from, another region's Service by name."""
    url = "pulsar://meridian-broker.us-west.svc:6650"
    inside = "kubectl -n us-east exec -i meridian-broker-0 -- sh -c"
    cluster.run(
        f"{inside} 'cat >/tmp/jwt && meridian produce inside -m hello --url {url} --token-file /tmp/jwt' "
        "<tokens/admin.jwt"
    )
    heard = cluster.run(
        f"{inside} 'meridian consume inside -s s --count 1 --url {url} --token-file /tmp/jwt' </dev/null"
    )
    assert heard.strip() == "hello"


def test_a_killed_broker_mid_stream_loses_nothing(cluster: Cluster, clients: dict[str, pulsar.Client]) -> None:
    """Messages are published in the west while the east's pod is killed; its consumer continues in the west."""
    producer = clients["us-west"].create_producer(TOPIC)
    consumer = clients["us-east"].subscribe(
        TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True
    )
    wanted = [f"mid-{number}" for number in range(500)]
    for text in wanted[:300]:
        producer.send_async(text.encode(), lambda *_: None)
    producer.flush()
    got = []
    for number in range(200):
        message = consumer.receive(30_000)
        got.append(message.data().decode())
        if number % 10:  # every tenth stays unacknowledged
            consumer.acknowledge(message)
    acked = {text for number, text in enumerate(got) if number % 10}
    cluster.run("kubectl -n us-east delete pod meridian-broker-0 --grace-period=0 --force")
    for text in wanted[300:]:
        producer.send(text.encode())
    after = clients["us-west"].subscribe(TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
    came = [message.data().decode() for message in receive_all(after, set(wanted) - acked)]
    assert set(wanted) - acked <= set(came), "nothing is lost"
    repeated = acked & set(came)
    assert len(repeated) <= len(acked) // 100, f"acknowledged just before the kill, and delivered again: {repeated}"
    after.close()
    producer.close()
    cluster.run("kubectl -n us-east rollout status statefulset/meridian-broker --timeout=300s")


def test_a_planned_switch_repeats_nothing(cluster: Cluster, clients: dict[str, pulsar.Client]) -> None:
    producer = clients["eu-central"].create_producer(TOPIC)
    wanted = [f"planned-{number}" for number in range(300)]
    for text in wanted:
        producer.send_async(text.encode(), lambda *_: None)
    producer.flush()
    before = clients["us-west"].subscribe(TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
    acked = set()
    for number in range(150):
        message = before.receive(30_000)
        if number % 7:
            before.acknowledge(message)
            acked.add(message.data().decode())
    before.close()
    after = clients["eu-central"].subscribe(TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
    came = [message.data().decode() for message in receive_all(after, set(wanted) - acked)]
    assert sorted(came) == sorted(set(wanted) - acked), "the others, each once"
    after.close()


def test_what_helm_printed_can_be_pasted(cluster: Cluster) -> None:
    told = {(release, namespace): noted(cluster, release, namespace) for release, namespace in INSTALLED}
    assert {key: len(found) for key, found in told.items()} == INSTALLED
    for command in (command for found in told.values() for command in found):
        print(f"noted: {command}")
        cluster.run(command)
    cluster.run(commands()[5])  # the topic as it was


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Topics:
    return Topics(cluster, partial(call, cluster))


@pytest.fixture(scope="module")
def rotation(cluster: Cluster, topics: Topics, connect: Connect, clients: dict[str, pulsar.Client]) -> Rotation:
    topics.make("rotated", "Delete")
    return Rotation(cluster, connect, clients)


def test_a_new_key_of_tokens_counts_beside_the_old_one(rotation: Rotation, measured: Callable[[str], None]) -> None:
    """Add the new key long before the old one ends: regions wait three minutes before they use it."""
    came = rotation.begin()
    measured(f"while a new key was added, {came} clients connected and none was refused")


def test_the_verifier_says_aligned_and_sees_a_broken_cursor(
    cluster: Cluster, clients: dict[str, pulsar.Client]
) -> None:
    values = "-f examples/kubernetes/verifier.yaml --set suspend=true"
    refused = cluster.run(f"! helm install verifier helm/meridian-verifier -n us-east {values} 2>&1")
    assert "install the verifier in a namespace of its own" in refused
    written = section("Proof, on a schedule")
    for command in written:
        cluster.run(command, seconds=700)
    cluster.run(f"helm upgrade verifier helm/meridian-verifier -n meridian-verifier {values}")
    printed = noted(cluster, "verifier", "meridian-verifier")
    assert set(printed) & set(written), "the job is made by the same command"
    for command in printed:
        if command not in written:
            cluster.run(command)
    forge = "kubectl -n meridian-verifier label configmap/meridian-verdict-orders forged=yes"
    assert "written by service account verifier only" in cluster.run(f"! {forge} 2>&1")
    # A few messages that nobody has acknowledged, and a broker told to lose them.
    cluster.run(
        "helm upgrade meridian helm/meridian-region -n us-east --reuse-values "
        "--set broker.config.faultInjectionEnabled=true --wait --timeout 300s"
    )
    producer = clients["us-east"].create_producer(TOPIC)
    for number in range(5):
        producer.send(f"open-{number}".encode())
    producer.close()
    claimed = call(cluster, "us-east", "POST", f"{SUBSCRIPTION}/damage", {"entries": 3})["claimed"][TOPIC]
    told = _verdict(cluster, "after-damage")
    assert told["status"] == "False"
    assert told["reason"] == "Misaligned"
    assert "Overclaimed: 3 entries of us-east" in told["message"]
    assert f"{claimed[-1]}]" in told["message"], "the range ends at the last entry that was lost"


def test_wrong_objects_are_refused_with_a_sentence(cluster: Cluster) -> None:
    def refused(patch: dict[str, Any]) -> str:
        (cluster.directory / "patch.json").write_text(json.dumps({"spec": patch}))
        return cluster.run("! kubectl patch geotopic/orders --type=merge --patch-file patch.json 2>&1")

    assert "the topic's name is immutable" in refused({"topic": "persistent://public/default/other"})
    assert "partitions cannot be removed" in refused({"partitions": 4})
    assert "at least 2 items" in refused({"regions": ["us-east"]})
    assert "must be a duration such as" in refused({"messageTTL": "soon"})
    assert "must be a size in bytes" in refused({"backlogQuota": {"size": "10GB"}})
    assert "size and time must both be 0, or neither" in refused({"retention": {"time": "72h", "size": "0"}})


def test_a_shadow_has_the_messages_of_its_source_under_the_same_ids(
    cluster: Cluster, clients: dict[str, pulsar.Client]
) -> None:
    """A shadow delivers what was stored before its creation, also by other regions, and what is published later."""
    topic = "persistent://public/default/copy"
    shadow = {
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "ShadowTopic",
        "metadata": {"name": "copy", "namespace": "default"},
        "spec": {"source": "orders", "region": "us-east", "topic": topic},
    }
    (cluster.directory / "shadow.json").write_text(json.dumps(shadow))
    cluster.run("kubectl apply -f shadow.json")
    cluster.wait(lambda: "Reading" in cluster.run("kubectl get shadowtopics"), "the shadow to read its source")
    source, copy = [
        clients["us-east"].subscribe(one, "compared", initial_position=pulsar.InitialPosition.Earliest)
        for one in (TOPIC, topic)
    ]
    producer = clients["us-east"].create_producer(TOPIC)
    sent = {f"copied-{number}": str(producer.send(f"copied-{number}".encode())) for number in range(50)}
    producer.close()
    stored, copied = [
        {str(message.message_id()): message.data().decode() for message in receive_all(one, set(sent))}
        for one in (source, copy)
    ]
    assert copied == stored
    assert {text: place for place, text in copied.items() if text in sent} == sent
    assert len(copied) > len(sent), "what was published before is missing"
    with pytest.raises(pulsar.NotAllowedError):
        clients["us-east"].create_producer(topic)
    for one in (source, copy):
        one.unsubscribe()
        one.close()
    moved = cluster.run("""! kubectl patch shadowtopic/copy --type=merge -p '{"spec":{"region":"us-west"}}' 2>&1""")
    assert "the region is immutable" in moved
    cluster.run("kubectl delete -f shadow.json")


def test_pods_are_restricted(cluster: Cluster) -> None:
    """All our pods would be admitted under the strictest Kubernetes security standard."""
    for namespace in NAMESPACES:
        told = cluster.run(
            f"kubectl label --dry-run=server --overwrite namespace {namespace} "
            "pod-security.kubernetes.io/enforce=restricted 2>&1"
        )
        assert "Warning" not in told, told


def test_network_policies_keep_strangers_out(cluster: Cluster) -> None:
    """A pod in a namespace that is not ours reaches no etcd, and reaches brokers only if clients are not listed."""
    policies = Policies(cluster)
    of_broker = partial(policies.places, "us-west", "app.kubernetes.io/component=broker")
    pulsar_port, admin = of_broker(6650, 8080)
    etcd = policies.places("us-west", "app.kubernetes.io/component=etcd", 2379, 2380, 2381)
    operator = policies.places("meridian-system", "app.kubernetes.io/name=meridian-operator", 8081)
    closed = [*etcd, *operator, *of_broker(8081)]
    with policies.stranger():
        policies.until_out(closed)
        policies.until_reached(STRANGER, "visitor", [pulsar_port, admin])  # these ask for a token
        listed = {"networkPolicy": {"clients": only_ours(), "admins": only_ours()}}
        (cluster.directory / "listed.json").write_text(json.dumps(listed))
        cluster.run(
            "helm upgrade meridian helm/meridian-region -n us-west --reuse-values -f listed.json --wait --timeout 300s"
        )
        try:
            policies.until_out([pulsar_port, admin, *closed])
            policies.until_reached("us-east", "meridian-broker-0 -c broker", [pulsar_port, admin])
            policies.until_reached("meridian-system", "deployment/operator", [admin])
            policies.until_reached("us-west", "meridian-broker-0 -c broker", etcd[:1])
            assert not policies.reached("us-east", "meridian-broker-0 -c broker", etcd), (
                "another region's etcd is within reach"
            )
            cluster.run("kubectl wait --for=condition=Ready --timeout=300s geotopic/orders")
        finally:
            cluster.run("helm rollback meridian -n us-west --wait --timeout 300s")


def test_the_operator_has_a_token_of_a_day_for_each_region(cluster: Cluster) -> None:
    """Each region may write its own token's Secret, and read no other."""

    def may(account: str, verb: str, secret: str) -> bool:
        asked = f"kubectl auth can-i {verb} secret/{secret} -n meridian-system --as=system:serviceaccount:{account}"
        return cluster.run(f"{asked} || true").strip() == "yes"

    for region, other in zip(PORTS, [*PORTS][1:] + [*PORTS][:1], strict=True):
        held = cluster.run(
            f"kubectl -n meridian-system get secret operator-token-{region} -o jsonpath='{{.data.token}}' | base64 -d"
        )
        claims = json.loads(base64.urlsafe_b64decode(held.split(".")[1] + "=="))
        assert (claims["aud"], claims["meridian_scope"]) == ([region], "admin")
        assert 43_000 < claims["exp"] - time.time() <= 86_400
        issuer = f"{region}:meridian-token-issuer"
        assert may(issuer, "patch", f"operator-token-{region}")
        for verb in ("get", "patch"):
            assert not may(issuer, verb, f"operator-token-{other}")
        assert may("meridian-system:operator", "get", f"operator-token-{region}")
        assert not may("meridian-system:operator", "patch", f"operator-token-{region}")
    assert not may("meridian-system:operator", "get", "another")


def test_another_replica_of_the_operator_takes_over(cluster: Cluster, measured: Callable[[str], None]) -> None:
    def holder() -> str:
        return cluster.run("kubectl -n meridian-system get lease operator -o jsonpath='{.spec.holderIdentity}'")

    before = holder()
    cluster.run(f"kubectl -n meridian-system delete pod {before.rpartition('_')[0]} --grace-period=0 --force 2>&1")
    killed = time.monotonic()
    cluster.wait(lambda: holder() not in ("", before), "another replica to act", seconds=20)
    manifest = (cluster.directory / "examples/kubernetes/orders.yaml").read_text().partition("\n---\n")[0]
    (cluster.directory / "later.yaml").write_text(re.sub(r"\borders\b", "later", manifest))
    cluster.run("kubectl apply -f later.yaml && kubectl wait --for=condition=Ready --timeout=300s geotopic/later")
    measured(f"an object was ready {time.monotonic() - killed:.1f} s after the acting operator was killed")
    cluster.run("kubectl delete geotopic/later")


def test_an_upgrade_under_traffic_loses_nothing(
    cluster: Cluster, clients: dict[str, pulsar.Client], measured: Callable[[str], None]
) -> None:
    """200 messages a second, while a changed setting replaces the broker's pod."""
    topic = "persistent://public/default/upgraded"
    consumer = clients["us-west"].subscribe(topic, "all", consumer_type=pulsar.ConsumerType.Shared)
    producer = clients["us-west"].create_producer(
        topic, send_timeout_millis=SEND_TIMEOUT_MS, max_pending_messages=200_000
    )
    receipts: list[float] = []
    refused: list[str] = []
    came: list[int] = []
    over = threading.Event()

    def answered(result: pulsar.Result, _: object) -> None:
        if result == pulsar.Result.Ok:
            receipts.append(time.monotonic())
        else:
            refused.append(str(result))

    def consume() -> None:
        while not over.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(200)
                came.append(int(message.data()))
                consumer.acknowledge(message)

    def publish() -> None:
        while not over.is_set():
            producer.send_async(str(len(sent)).encode(), answered)
            sent.append(len(sent))
            over.wait(0.005)  # 200 a second

    sent: list[int] = []
    consuming, publishing = threading.Thread(target=consume), threading.Thread(target=publish)
    consuming.start()
    publishing.start()
    try:
        cluster.wait(lambda: len(came) > 400, "messages to flow")
        cluster.run(
            "helm upgrade meridian helm/meridian-region -n us-west --reuse-values "
            "--set broker.config.managedLedgerMaxEntriesPerLedger=10000000 --wait --timeout 300s"
        )
        upto = len(sent)
        cluster.wait(lambda: len(set(came)) > upto, "everything sent during the upgrade to arrive")
    finally:
        over.set()
        publishing.join()
        consuming.join()
    producer.flush()
    pause = max(after - before for before, after in itertools.pairwise(receipts))
    measured(
        f"helm upgrade under 200 messages a second: {len(sent)} messages, the longest pause of receipts was "
        f"{pause:.2f} s, {len(came) - len(set(came))} messages came twice"
    )
    assert not refused
    assert set(came) >= set(range(upto)), "nothing is lost"
    assert len(came) - len(set(came)) <= 20, "what a client acknowledges within a tenth of a second"
    producer.close()
    consumer.close()


def test_whole_numbers_stay_whole_when_values_are_reused(cluster: Cluster) -> None:
    """Helm keeps a release's values as JSON, where each number is a float: 10000000 comes back as 1e+07."""
    shown = "kubectl -n us-west get configmap meridian-broker -o jsonpath='{.data.broker\\.conf}'"
    before = cluster.run(shown)
    assert "managedLedgerMaxEntriesPerLedger=10000000" in before.splitlines()
    for _ in range(2):
        cluster.run("helm upgrade meridian helm/meridian-region -n us-west --reuse-values --wait --timeout 300s")
        assert cluster.run(shown) == before


def test_the_key_of_tokens_is_replaced_and_the_peer_secret_and_no_client_is_refused(
    rotation: Rotation, topics: Topics, measured: Callable[[str], None]
) -> None:
    came = rotation.finish()
    measured(f"while keys were replaced, {came} clients connected and none was refused")
    topics.because("rotated", "AsSpecified")


@pytest.fixture(scope="module")
def restoring(cluster: Cluster, topics: Topics, clients: dict[str, pulsar.Client]) -> Iterator[Restoring]:
    topics.make("restored", "Delete")
    made = Restoring(cluster, clients)
    yield made
    made.close()


@pytest.mark.parametrize("what", RESTORES)
def test_a_region_that_is_restored_lacks_and_repeats_nothing(restoring: Restoring, what: str) -> None:
    restoring.go_back(RESTORES[what])


@pytest.mark.parametrize("case", CASES)
def test_a_deletion_takes_what_it_should_and_nothing_else(topics: Topics, case: str) -> None:
    CASES[case](topics)


def test_metadata_are_made_once_and_a_conflict_is_shown(cluster: Cluster) -> None:
    """Two regions set one policy while they are cut off from each other, and another while synchronization is off: all
    end with the later values."""
    sharing = Sharing(cluster, partial(call, cluster))
    sharing.permit()
    sharing.apply(suspend=False)
    sharing.until_synced()
    call(cluster, "us-east", "PUT", "/admin/v2/tenants/shop", {"adminRoles": [], "allowedClusters": [*PORTS]})
    call(cluster, "us-east", "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {})
    call(cluster, "us-east", "POST", TTL, 60)
    sharing.until_all_have("shop")
    sharing.until_all_say("/admin/v2/namespaces/shop", [NAMESPACE])
    sharing.until_all_say(TTL, 60)
    sharing.until_synced()
    sharing.leave_alone("us-east")
    call(cluster, "us-east", "POST", TTL, 70)
    sharing.leave_alone("us-west")
    call(cluster, "us-west", "POST", TTL, 80)
    sharing.bring_back(*PORTS)
    sharing.until_all_say(TTL, 80)
    sharing.until_synced()
    assert "us-east has 1" in sharing.conflict()
    conflicts = "/meridian/v1/metadata/conflicts"
    (lost,) = call(cluster, "us-east", "GET", conflicts)["conflicts"]
    assert (lost["won"]["value"], lost["lost"]["value"], lost["lost"]["caller"]) == (80, 70, "admin")
    call(cluster, "us-east", "DELETE", f"{conflicts}?path={quote(lost['path'], safe='')}")
    sharing.apply(suspend=True)
    call(cluster, "us-east", "POST", TTL, 90)
    call(cluster, "us-west", "POST", TTL, 100)
    assert call(cluster, "us-east", "GET", TTL) == 90
    sharing.apply(suspend=False)
    sharing.until_all_say(TTL, 100)
    cluster.wait(
        lambda: call(cluster, "us-east", "GET", conflicts)["count"] == 1, "us-east to list the change that it lost"
    )
    sharing.delete()


def test_a_volume_grows_and_its_pod_goes_on(cluster: Cluster) -> None:
    Growing(cluster).grow()


def test_to_end_it_all(cluster: Cluster) -> None:
    for command in section("To end it"):
        cluster.run(command, seconds=400)
    left = cluster.run("kubectl get namespaces -o name")
    assert not [name for name in NAMESPACES if f"namespace/{name}" in left]


def _verdict(cluster: Cluster, job: str) -> dict[str, Any]:
    """Run the verifier now; returns the condition that the operator derives from its verdict."""
    cluster.run(f"kubectl -n meridian-verifier create job --from=cronjob/verifier {job}")
    ended = cluster.wait(lambda: _ended(cluster, job), f"job {job} to end", seconds=600)
    log = cluster.run(f"kubectl -n meridian-verifier logs job/{job}")
    document = cluster.get("configmap/meridian-verdict-orders", "meridian-verifier")
    assert document is not None, f"{ended}\n{log[-4000:]}"
    time = json.loads(document["data"]["verdict.json"])["time"]

    def told() -> dict[str, Any] | None:
        condition = cluster.condition("replicatedsubscription/orders-billing", "Aligned")
        return condition if time in condition.get("message", "") else None

    found: dict[str, Any] = cluster.wait(told, f"the operator to report the verdict of {time}")
    return found


def _ended(cluster: Cluster, job: str) -> str | None:
    status = (cluster.get(f"job/{job}", "meridian-verifier") or {}).get("status", {})
    return next((one["type"] for one in status.get("conditions", []) if one["type"] in ("Complete", "Failed")), None)
