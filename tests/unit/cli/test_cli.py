# SPDX-License-Identifier: Apache-2.0
"""The command line against a small admin server that records requests and answers as the test says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from meridian_broker.cli import main
from meridian_broker.cli.output import USAGE
from meridian_broker.cli.programs import Sources, UpOptions
from support.brokers.stand_in_admin import AdminServer, Started, run, serving

TOKEN = "s3cret-of-a-test"


@pytest.fixture
def server() -> Iterator[AdminServer]:
    with serving() as book:
        yield book


@pytest.mark.parametrize(
    ("line", "request_line", "body"),
    [
        ("tenants delete t", "DELETE /admin/v2/tenants/t", None),
        ("tenants delete t --yes", "DELETE /admin/v2/tenants/t", None),
        ("tenants delete t --force", "DELETE /admin/v2/tenants/t?force=true", None),
        ("topics create orders", "PUT /admin/v2/persistent/public/default/orders", None),
        ("topics create t/n/x --partitions 4", "PUT /admin/v2/persistent/t/n/x/partitions", 4),
        ("topics create persistent://t/n/a/b%", "PUT /admin/v2/persistent/t/n/a%2Fb%25", None),
        ("topics partitions x --grow-to 8", "POST /admin/v2/persistent/public/default/x/partitions", 8),
        (
            "subscriptions create x s --from earliest --replicated",
            "PUT /admin/v2/persistent/public/default/x/subscription/s?replicated=true",
            {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
        ),
        (
            "subscriptions set-scope x s origin",
            "POST /meridian/v1/subscriptions/persistent/public/default/x/s/scope",
            {"dispatchScope": "origin"},
        ),
        (
            "subscriptions take-over x s --origin a --by b",
            "POST /meridian/v1/subscriptions/persistent/public/default/x/s/scope",
            {"takeOver": {"origin": "a", "by": "b"}},
        ),
        (
            "subscriptions expire x s --older-than 60",
            "POST /admin/v2/persistent/public/default/x/subscription/s/expireMessages/60",
            None,
        ),
        (
            "subscriptions expire x s --up-to 7:9 --all-regions",
            "POST /admin/v2/persistent/public/default/x/subscription/s/expireMessages?allRegions=true",
            {"ledgerId": 7, "entryId": 9, "partitionIndex": -1},
        ),
        (
            "subscriptions expire x --older-than 0",
            "POST /admin/v2/persistent/public/default/x/all_subscription/expireMessages/0",
            None,
        ),
    ],
)
def test_a_change_is_one_request(server: AdminServer, line: str, request_line: str, body: Any) -> None:
    server.answers[request_line] = (204, None)
    result = run(*line.split(), "--url", server.url)
    assert (result.exit_code, server.asked) == (0, [(request_line, body)]), result.output
    result = run(*line.split(), "--url", server.url, "--json")
    assert list(json.loads(result.output)) == ["done"]


@pytest.mark.parametrize(
    ("line", "path", "answer", "output"),
    [
        ("tenants list", "/admin/v2/tenants", ["b", "a"], "b\na\n"),
        ("tenants list", "/admin/v2/tenants", [], ""),
        ("namespaces list t", "/admin/v2/namespaces/t", ["t/n"], "t/n\n"),
        ("topics list", "/admin/v2/persistent/public/default", ["y", "x"], "x\ny\n"),
        ("subscriptions list x", "/admin/v2/persistent/public/default/x/subscriptions", ["s"], "s\n"),
    ],
)
def test_a_list_is_one_name_per_line_or_json(
    server: AdminServer, line: str, path: str, answer: Any, output: str
) -> None:
    server.answers[f"GET {path}"] = (200, answer)
    assert run(*line.split(), "--url", server.url).output == output
    as_json = run(*line.split(), "--json", env={"MERIDIAN_URL": server.url})
    assert sorted(json.loads(as_json.output)) == sorted(answer)


@pytest.mark.parametrize(
    ("partitions", "internal", "path"),
    [
        (0, False, "stats"),
        (0, True, "internalStats"),
        (2, False, "partitioned-stats"),
        (2, True, "partitioned-internalStats"),
    ],
)
def test_stats_of_a_topic_and_of_a_partitioned_one(
    server: AdminServer, partitions: int, internal: bool, path: str
) -> None:
    topic = "/admin/v2/persistent/public/default/x"
    server.answers[f"GET {topic}/partitions"] = (200, {"partitions": partitions})
    server.answers[f"GET {topic}/{path}"] = (200, {"found": path})
    result = run("topics", "stats", "x", "--json", "--url", server.url, *(["--internal"] if internal else []))
    assert json.loads(result.output) == {"found": path}


STATS = {
    "msgInCounter": 12,
    "msgRateIn": 1.26,
    "msgOutCounter": 9,
    "msgRateOut": 0.5,
    "storageSize": 3_500_000,
    "publishers": [{}],
    "subscriptions": {
        "billing": {
            "type": "Shared",
            "isReplicated": True,
            "msgBacklog": 3,
            "unackedMessages": 2,
            "consumers": [{}, {}],
            "msgRateOut": 0.5,
        }
    },
    "replication": {"us-west": {"connected": False, "replicationBacklog": 7, "msgRateOut": 0.0, "msgRateIn": 2.0}},
}


def test_stats_are_tables_for_people(server: AdminServer) -> None:
    topic = "/admin/v2/persistent/public/default/x"
    server.answers[f"GET {topic}/partitions"] = (200, {"partitions": 0})
    server.answers[f"GET {topic}/stats"] = (200, STATS)
    told = run("topics", "stats", "x", "--url", server.url).output.splitlines()
    assert [line.split() for line in told[1::3]] == [
        ["12", "1.3", "9", "0.5", "3.3", "MiB", "1"],
        ["billing", "Shared", "yes", "3", "2", "2", "0.5"],
        ["us-west", "no", "7", "0.0", "2.0"],
    ]


def test_internal_stats_are_tables_for_each_partition(server: AdminServer) -> None:
    topic = "/admin/v2/persistent/public/default/x"
    cursor = {"markDeletePosition": "7:1", "totalNonContiguousDeletedMessagesRange": 1, "readPosition": "7:4"}
    one = {"ledgers": [{"ledgerId": 7, "entries": 5, "size": 2048}], "cursors": {"billing": cursor}}
    server.answers[f"GET {topic}/partitions"] = (200, {"partitions": 1})
    server.answers[f"GET {topic}/partitioned-internalStats"] = (200, {"partitions": {f"{topic}-partition-0": one}})
    told = run("topics", "stats", "x", "--internal", "--url", server.url).output
    assert told.splitlines() == [
        f"{topic}-partition-0",
        "ledger  entries  size",
        "7       5        2.0 KiB",
        "",
        "subscription  acknowledged up to  holes  reads next",
        "billing       7:1                 1      7:4",
    ]


def test_regions_as_a_table_and_as_json(server: AdminServer) -> None:
    server.answers["GET /admin/v2/clusters"] = (200, ["us", "eu-central"])
    server.answers["GET /admin/v2/clusters/us"] = (200, {"serviceUrl": "http://u", "brokerServiceUrl": "pulsar://u"})
    server.answers["GET /admin/v2/clusters/eu-central"] = (200, {})
    table = run("regions", "list", "--url", server.url).output.splitlines()
    assert [line.split() for line in table] == [
        ["name", "brokerServiceUrl", "url"],
        ["us", "pulsar://u", "http://u"],
        ["eu-central", "-", "-"],
    ]
    assert len(json.loads(run("regions", "list", "--json", "--url", server.url).output)) == 2


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        (
            ("pulsar+ssl://ap:6651", "https://ap:8443"),
            {"brokerServiceUrlTls": "pulsar+ssl://ap:6651", "serviceUrlTls": "https://ap:8443"},
        ),
        (
            ("pulsar://ap:6650", "http://ap:8080"),
            {"brokerServiceUrl": "pulsar://ap:6650", "serviceUrl": "http://ap:8080"},
        ),
    ],
)
def test_another_region_is_added(server: AdminServer, urls: tuple[str, str], told: dict[str, str]) -> None:
    status = {"region": "us", "enabled": True, "scopes": ["clusters", "tenants"]}
    server.answers["GET /meridian/v1/metadata/status"] = (200, status)
    server.answers["PUT /admin/v2/clusters/ap"] = (204, None)
    added = run("regions", "add", "ap", *urls, "--url", server.url)
    assert "will be in all regions that share clusters with us" in added.output
    assert server.changes() == [("PUT /admin/v2/clusters/ap", told)]
    server.answers["GET /meridian/v1/metadata/status"] = (200, status | {"scopes": ["tenants"]})
    assert "known in us alone" in run("regions", "add", "ap", *urls, "--url", server.url).output


def test_another_region_has_both_or_neither_of_its_addresses_with_tls(server: AdminServer) -> None:
    refused = run("regions", "add", "ap", "pulsar+ssl://ap:6651", "http://ap:8080", "--url", server.url)
    assert (refused.exit_code, server.asked) == (USAGE, [])
    assert "both addresses with TLS" in refused.output


def test_the_links_of_a_region_as_a_table_and_as_json(server: AdminServer) -> None:
    sent = {"topics": 10, "connected": 10, "backlog": 0, "delay_ms": 0, "held": {}}
    us = {"name": "us", "local": True, "not_ready": {"persistent://p/d/t": "5 entries are missing"}}
    eu = {"name": "eu", "local": False, "progress": {"connected": True, "problem": None}, "replication": sent}
    held = sent | {"connected": 9, "backlog": 7, "delay_ms": 1500, "held": {"persistent://p/d/o": "gap"}}
    ap = eu | {"name": "ap", "progress": {"connected": False, "problem": "refused"}, "replication": held}
    gone = {"name": "old", "local": False}
    server.answers["GET /meridian/v1/regions"] = (200, {"region": "us", "regions": [us, eu, ap, gone]})
    result = run("regions", "status", "--url", server.url)
    lines = result.output.splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["us", "(this", "one)", "-", "-", "-", "-"],
        ["eu", "up", "10", "10", "0", "-"],
        ["ap", "down", "10", "9", "7", "1.5", "s"],
        ["old", "none", "-", "-", "-", "-"],
    ]
    assert lines[6:] == [
        "persistent://p/d/t: not filled yet: 5 entries are missing",
        "ap: refused",
        "ap: 1 of 10 topics has no connection for messages",
        "ap: persistent://p/d/o is held: gap",
        "old: there is no link to it yet",
    ]
    as_json = run("regions", "status", "--json", "--url", server.url)
    assert len(json.loads(as_json.output)["regions"]) == 4
    assert (result.exit_code, as_json.exit_code) == (1, 1)


@pytest.mark.parametrize(
    ("link", "sent", "not_ready", "code"),
    [
        ({}, {}, {}, 0),
        ({"connected": False, "problem": "refused"}, {}, {}, 1),
        ({}, {"connected": 9}, {}, 1),
        ({}, {"held": {"persistent://p/d/o": "gap"}}, {}, 1),
        ({}, {}, {"persistent://p/d/t": "5 entries are missing"}, 1),
        ({}, {"backlog": 7, "delay_ms": 1500}, {}, 0),
        ({"apart": {"": "CatchingUp: comparing what eu acknowledged"}}, {}, {}, 1),
        ({"apart": {"persistent://p/d/t": "OtherIncarnation: t was last deleted: never in us"}}, {}, {}, 1),
    ],
)
def test_the_exit_code_tells_a_script_about_a_link_in_trouble(
    server: AdminServer, link: dict[str, Any], sent: dict[str, Any], not_ready: dict[str, str], code: int
) -> None:
    well = {"topics": 10, "connected": 10, "backlog": 0, "delay_ms": 0, "held": {}}
    us = {"name": "us", "local": True, "not_ready": not_ready}
    up = {"connected": True, "problem": None}
    eu = {"name": "eu", "local": False, "progress": up | link, "replication": well | sent}
    server.answers["GET /meridian/v1/regions"] = (200, {"region": "us", "regions": [us, eu]})
    assert run("regions", "status", "--url", server.url).exit_code == code
    assert run("regions", "status", "--json", "--url", server.url).exit_code == code


NOT_OPEN = {"topics": 5, "first": ["a", "b", "c", "d", "e"]}
NOT_KNOWN: dict[str, Any] = {"topics": None, "first": []}


def linked(*, apart: dict[str, str] | None = None, not_open: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a region reports about itself and about a linked region."""
    sent = {"topics": 10, "connected": 10, "backlog": 0, "delay_ms": 0, "held": {}}
    us = {"name": "us", "local": True, "not_ready": {}, "not_open": not_open or {"topics": 0, "first": []}}
    link = {"connected": True, "problem": None, "apart": apart or {}}
    return {"region": "us", "regions": [us, {"name": "eu", "local": False, "progress": link, "replication": sent}]}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (linked(apart={"": "CatchingUp: it is being compared"}), "eu: CatchingUp: it is being compared"),
        (linked(apart={"t s": "TooLarge: 5 MiB"}), "eu: t s: TooLarge: 5 MiB"),
        (linked(not_open={"topics": 2, "first": ["a", "b"]}), "not open yet: a, b"),
        (
            linked(not_open=NOT_OPEN),
            "not open yet: a, b, c and 2 more",
        ),
        (
            linked(not_open={"topics": None, "first": []}),
            "the topics on record are not known yet: the broker is starting",
        ),
    ],
)
def test_waiting_for_a_region_ends_in_time_and_says_what_is_missing(
    server: AdminServer, said: dict[str, Any], sentence: str
) -> None:
    server.answers["GET /meridian/v1/regions"] = (200, said)
    result = run("regions", "wait", "--ready", "--timeout", "0", "--url", server.url)
    assert (result.exit_code, result.output.splitlines()) == (1, [sentence])
    as_json = run("regions", "wait", "--ready", "--timeout", "0", "--json", "--url", server.url)
    assert (as_json.exit_code, json.loads(as_json.output)) == (1, {"ready": False, "missing": [sentence]})


def test_waiting_for_a_region_ends_once_it_is_ready(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again while something is missing, and while it does not answer because it is starting."""
    server.answers["GET /meridian/v1/regions"] = (503, {"reason": "this broker is starting"})
    following = [(200, linked(not_open=NOT_OPEN)), (200, linked())]

    def pause(_: float) -> None:
        server.answers["GET /meridian/v1/regions"] = following.pop(0)

    monkeypatch.setattr("meridian_broker.cli.nouns.time.sleep", pause)
    result = run("regions", "wait", "--ready", "--url", server.url)
    assert (result.exit_code, result.output, following) == (0, "ready\n", [])
    as_json = run("regions", "wait", "--ready", "--json", "--url", server.url)
    assert json.loads(as_json.output) == {"ready": True, "missing": []}


def test_waiting_for_a_region_that_does_not_answer_ends_as_unknown(server: AdminServer) -> None:
    server.answers["GET /meridian/v1/regions"] = (503, {"reason": "this broker is starting"})
    result = run("regions", "wait", "--ready", "--timeout", "0", "--url", server.url)
    assert result.exit_code == 2
    assert "this broker is starting" in result.output
    assert run("regions", "wait", "--url", server.url).exit_code == USAGE, "the command has to say what to wait for"


def test_a_refusal_is_exit_code_1_with_the_brokers_reason(server: AdminServer) -> None:
    server.answers["PUT /admin/v2/persistent/public/default/x"] = (409, {"reason": "this topic exists"})
    result = run("topics", "create", "x", "--url", server.url)
    assert result.exit_code == 1
    assert result.stderr == "Error: this topic exists (HTTP 409)\n"


def test_a_broker_in_trouble_is_exit_code_2(server: AdminServer) -> None:
    server.answers["GET /admin/v2/tenants"] = (503, {"reason": "the metadata store is away"})
    result = run("tenants", "list", "--url", server.url)
    assert result.exit_code == 2
    # Another region may be the one that does not answer, so this one is not blamed.
    assert result.stderr == f"Error: {server.url} says: the metadata store is away (HTTP 503)\n"


def test_an_unreachable_broker_is_exit_code_2(server: AdminServer) -> None:
    # Nothing listens on port 1 of a machine that runs tests.
    result = run("tenants", "list", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "no answer from http://127.0.0.1:1" in result.stderr
    assert run("tenants", "list", "--url", "nonsense").exit_code == USAGE


def test_a_redirect_to_the_owner_keeps_method_and_body(server: AdminServer) -> None:
    first = "/admin/v2/persistent/public/default/x/partitions"
    server.redirects[f"PUT {first}"] = f"{server.url}{first}?authoritative=true"
    server.answers[f"PUT {first}?authoritative=true"] = (204, None)
    assert run("topics", "create", "x", "--partitions", "3", "--url", server.url).exit_code == 0
    assert [body for _, body in server.asked] == [3, 3]


def test_a_redirect_loop_ends(server: AdminServer) -> None:
    server.redirects["GET /admin/v2/tenants"] = "/admin/v2/tenants"
    result = run("tenants", "list", "--url", server.url)
    assert (result.exit_code, len(server.asked)) == (2, 5)


def test_a_token_is_read_from_a_file_and_never_shown(server: AdminServer, tmp_path: Path) -> None:
    server.answers["GET /admin/v2/tenants"] = (401, {"reason": "who are you"})
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n", encoding="ascii")
    result = run("tenants", "list", "--url", server.url, "--token-file", str(file))
    assert server.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in result.output + result.stderr


@pytest.mark.parametrize("content", ["", "\n", "two\nlines"])
def test_a_file_without_a_token(server: AdminServer, tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="ascii")
    assert run("tenants", "list", "--url", server.url, "--token-file", str(file)).exit_code == 2
    assert not server.asked


@pytest.mark.parametrize(
    "line",
    [
        "topics create a/b",
        "topics create mqtt://a/b/c",
        "topics create persistent://a/b",
        "namespaces list",
        "namespaces create n",
        "namespaces create t/n/x",
        "subscriptions reset x s --to yesterday",
        "subscriptions create x s --from 1700000000000",
        "subscriptions expire x s",
        "subscriptions expire x --up-to 7:9",
        "subscriptions expire x s --up-to 1700000000000",
        "topics create x --partitions 0",
        "up --regions a,,b",
        "up --regions a,a",
        "nonsense",
    ],
)
def test_a_wrong_command_line_has_an_exit_code_of_its_own(server: AdminServer, line: str) -> None:
    result = run(*line.split(), env={"MERIDIAN_URL": server.url})
    assert result.exit_code == USAGE
    assert "Error" in result.stderr
    assert not server.asked


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("pulsar://127.0.0.1:6650", "is a service URL. This command needs the admin address"),
        ("127.0.0.1:8080", "is not an admin address: write http://HOST:PORT"),
    ],
)
def test_an_address_of_another_protocol_is_recognised(url: str, said: str) -> None:
    result = run("topics", "list", "--url", url)
    assert result.exit_code == USAGE
    assert said in " ".join(result.stderr.split())


def test_the_list_of_commands_is_shown_without_importing_them() -> None:
    code = (
        "import sys; from meridian_broker.server.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    listed = re.findall(r"^  ([a-z-]+)  +(\S.*)$", done.stdout.partition("Commands:")[2], flags=re.MULTILINE)
    assert [name for name, _ in listed] == main.build(Started()).list_commands(click.Context(click.Command("x")))
    assert not [line for _, line in listed if line.endswith("...")], "no line is truncated"
    loaded = set(done.stderr.split())
    modules = {f"meridian_broker.cli.{module}" for module, _ in main.COMMANDS.values()}
    assert not loaded & (modules | {"meridian_verifier", "pyspark", "meridian_broker.server.settings", "uvloop"})


def test_every_command_has_the_name_under_which_it_is_listed() -> None:
    group = main.build(Started())
    context = click.Context(group)
    for name in (*main.COMMANDS, *main.PROGRAMS):
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


def test_every_command_and_option_explains_itself() -> None:
    for path, command in commands(main.build(Started())):
        assert command.help, path
        unexplained = [
            one.name for one in command.params if isinstance(one, click.Option) and not one.help and not one.hidden
        ]
        assert not unexplained, path


def test_commands_that_query_take_json_and_destructive_ones_ask_first() -> None:
    """As the README promises."""
    for path, command in commands(main.build(Started())):
        options = {name for one in command.params for name in one.opts}
        assert "--url" not in options or "--json" in options, path
        destroys = path[-1:] in {("delete",), ("reset",), ("expire",), ("accept-gap",)}
        assert not destroys or "--yes" in options, path


def test_a_command_of_a_distribution_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_installed", dict)
    result = run("verify", "--regions", "x", "y")
    assert result.exit_code == 2
    assert "pip install ./verifier" in result.stderr
    assert "pip install ./verifier" in re.sub(r"\s+", " ", run("verify", "--help").output)


def test_a_command_of_an_installed_distribution_and_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(name: str, value: str) -> EntryPoint:
        return EntryPoint(name=name, value=value, group=main.ENTRY_POINT_GROUP)

    installed = [entry("hello", f"{__name__}:hello"), entry("broken", "no_such_module:x"), entry("odd", "json:dumps")]
    monkeypatch.setattr(main, "_installed", lambda: {found.name: found for found in installed})
    assert run("hello").output == "hello\n"
    assert (run("broken").exit_code, run("odd").exit_code) == (2, 2)
    assert "cannot be loaded" in run("broken").stderr
    help_page = run("--help")
    assert help_page.exit_code == 0
    assert {"hello", "broken", "odd", "verify", "topics"} <= set(help_page.output.split())


@click.command()
def hello() -> None:
    """Says hello."""
    click.echo("hello")


def test_up_passes_on_its_options(tmp_path: Path) -> None:
    started = Started()
    line = f"up --regions a,b --data-dir {tmp_path} --metadata etcd --base-port 7000 --set x=1 --set y=2 --insecure"
    assert run(*line.split(), started=started).exit_code == 0
    assert started.options == [
        UpOptions(
            regions=("a", "b"),
            data_directory=tmp_path,
            metadata="etcd",
            base_port=7000,
            base_http_port=8080,
            assignments=("x=1", "y=2", "insecure=true"),
        )
    ]


def test_bookies_need_an_etcd(tmp_path: Path) -> None:
    started = Started()
    line = f"up --data-dir {tmp_path} --storage bookkeeper --bookies 4 --bookkeeper-jars {tmp_path}"
    assert run(*line.split(), started=started).exit_code == 0
    (options,) = started.options
    assert (options.metadata, options.storage, options.bookies) == ("etcd", "bookkeeper", 4)
    assert options.bookkeeper_jars == tmp_path
    refused = run(*line.split(), "--metadata", "embedded", started=started)
    assert refused.exit_code == USAGE and "--metadata etcd" in refused.stderr
    assert run("up", "--data-dir", str(tmp_path), started=started).exit_code == 0
    assert started.options[-1].metadata == "embedded"


def test_several_brokers_need_bookies(tmp_path: Path) -> None:
    started = Started()
    several = ("up", "--data-dir", str(tmp_path), "--brokers", "2")
    refused = run(*several, started=started)
    assert refused.exit_code == USAGE and "--storage bookkeeper" in refused.stderr
    assert run(*several, "--storage", "bookkeeper", started=started).exit_code == 0
    assert run(*several, "--storage", "bookkeeper", "--regions", "us", started=started).exit_code == 0
    assert [options.brokers for options in started.options] == [2, 2]


def test_broker_and_standalone_pass_on_their_settings() -> None:
    started = Started()
    assert run("broker", "--config", "f", "--set", "a=b", "--supervisor", "7", started=started).exit_code == 0
    assert run("standalone", "--data-dir", "d", started=started).exit_code == 0
    assert started.sources == [
        (Sources(config=Path("f"), assignments=("a=b",)), 7),
        (Sources(config=None, assignments=("dataDirectory=d",)), None),
    ]


def test_secure_etcd_passes_on_the_file_of_roots_password_not_the_password() -> None:
    result = run("secure-etcd", "--config", "f", "--root-password-file", "r", started=Started())
    assert (result.exit_code, result.output) == (0, "f, r\n")
    assert run("secure-etcd", "--config", "f", started=Started()).exit_code == USAGE


def test_await_etcd_passes_on_its_settings() -> None:
    started = Started()
    assert run("await-etcd", "--set", "a=b", started=started).exit_code == 0
    assert started.sources == [(Sources(config=None, assignments=("a=b",)), None)]
