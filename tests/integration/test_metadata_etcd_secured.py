# SPDX-License-Identifier: Apache-2.0
"""An etcd that asks for a password, or for certificates: who is let in, and what happens while tokens are invalid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from aetcd import rpc
from meridian_broker.engines.etcd.address import ANONYMOUS, Login, parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.engines.etcd.securing import secure
from meridian_broker.metadata.store import MetadataError, MetadataLoginRefused, MetadataUnavailable, Put, Record
from meridian_broker.server.secure_etcd import run_secure_etcd
from meridian_broker.server.settings import Settings
from meridian_broker.server.stores import open_metadata
from meridian_broker.server.waiting import StartFailed
from support.brokers.certificates import Authority
from support.brokers.etcd_server import EtcdServer, etcd_missing, tls_etcd
from support.brokers.free_ports import free_port
from support.contracts.metadata_contract import begin, end, next_changes, wait_until

_missing = etcd_missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=_missing or "")

PREFIX = "meridian/us"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    started = EtcdServer(tmp_path_factory.mktemp("secured"), secured=True)
    yield started
    started.close()


@pytest.fixture
async def store(server: EtcdServer) -> AsyncIterator[EtcdMetadataStore]:
    connected = await EtcdMetadataStore.connect(server.url, PREFIX, login=server.login)
    yield connected
    await connected.close()


async def set_password(server: EtcdServer, password: str) -> None:
    """As root. This invalidates every token of the brokers' user, even if the password stays the same."""
    assert server.login.password_file is not None
    root = Login("root", server.login.password_file.with_name("root.password"))
    channel = EtcdChannel(parse_endpoints(server.url), root)
    request = rpc.AuthUserChangePasswordRequest(name=server.login.user, password=password)
    await channel.call(lambda at: at.auth.UserChangePassword, request, 60.0)
    await channel.close()


async def test_a_stranger_reads_and_changes_nothing(server: EtcdServer, store: EtcdMetadataStore) -> None:
    await store.put("/secret", b"1")
    with pytest.raises(MetadataError, match="requires a password: set metadataStoreUser"):
        await EtcdMetadataStore.connect(server.url, PREFIX)
    stranger = EtcdMetadataStore(EtcdChannel(parse_endpoints(server.url)), PREFIX)
    for attempt in (stranger.get("/secret"), stranger.put("/secret", b"2"), stranger.delete("/secret")):
        with pytest.raises(MetadataError):
            await attempt
    with pytest.raises(MetadataError):
        await stranger.scan("/")
    with pytest.raises(MetadataError):
        await anext(stranger.watch("/"))
    at = stranger._channel._connections.now
    for asked in (
        at.auth.UserList(rpc.AuthUserListRequest()),
        at.auth.UserAdd(rpc.AuthUserAddRequest(name="me", password="mine")),
        at.auth.AuthDisable(rpc.AuthDisableRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=r"user name is empty|permission denied"):
            await asked
    await stranger.close()
    record = await store.get("/secret")
    assert record is not None
    assert record.value == b"1"


async def test_only_the_owner_reads_the_passwords_and_enters_the_directory(server: EtcdServer) -> None:
    assert server.login.password_file is not None
    directory = server.login.password_file.parent
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in ("password", "root.password"):
        assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert not [file for file in directory.iterdir() if file.is_socket()], "other members would need no password"


async def test_a_wrong_password_is_refused_and_never_shown(server: EtcdServer, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("not-the-password\n")
    with pytest.raises(MetadataError, match=r"rejects user 'meridian' with the password in .*wrong") as refused:
        await EtcdMetadataStore.connect(
            server.url, PREFIX, login=replace(server.login, password_file=tmp_path / "wrong")
        )
    assert not isinstance(refused.value, MetadataUnavailable), "retrying would not help"
    assert "not-the-password" not in str(refused.value)
    (tmp_path / "wrong").write_text("\n")
    with pytest.raises(MetadataError, match="is empty"):
        await EtcdMetadataStore.connect(
            server.url, PREFIX, login=replace(server.login, password_file=tmp_path / "wrong")
        )


async def test_brokers_have_only_their_own_keys_and_a_request_for_others_fails_alone(
    server: EtcdServer, store: EtcdMetadataStore
) -> None:
    await store.put("/mine", b"")
    elsewhere = EtcdMetadataStore(store._channel, "/other")
    with pytest.raises(MetadataError, match="permission denied"):
        await elsewhere.put("/a", b"")
    elsewhere._together = store._together
    refused, mine, none = await asyncio.gather(
        elsewhere.get("/a"), store.get("/mine"), store.get("/none"), return_exceptions=True
    )
    assert "permission denied" in str(refused)
    assert isinstance(mine, Record)
    assert none is None
    assert server.login.user != "root"


async def test_invalid_tokens_disturb_nobody(server: EtcdServer, store: EtcdMetadataStore) -> None:
    """As if they had expired: requests and new watches get a new one; an existing watch goes on without."""
    assert server.login.password_file is not None
    lease = await store.lease(10)
    watch = await begin(store, "/w/")
    await set_password(server, server.login.password())
    await asyncio.gather(*(store.put(f"/w/{number}", b"") for number in range(3)))
    seen = [change.path for change in [*await next_changes(watch)]]
    while len(seen) < 3:
        seen += [change.path for change in await next_changes(watch)]
    await set_password(server, server.login.password())
    other = await begin(store, "/w/")
    await set_password(server, server.login.password())
    assert len(await store.scan("/w/")) == 3
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    before = lease.valid_until()
    await store.transact([], [Put("/w/a", b"", lease=lease.lease_id), Put("/w/b", b"")])
    for one in (watch, other):
        assert [change.path for change in await next_changes(one)] == ["/w/a", "/w/b"]
        await end(one)
    await wait_until(lambda: lease.valid_until() > before)
    await lease.revoke()


async def test_an_invalid_token_costs_one_login_however_many_requests_it_fails(
    server: EtcdServer, store: EtcdMetadataStore
) -> None:
    """A login costs etcd as much as a hundred requests."""
    connection, void = await store._channel.opened(60.0)
    await set_password(server, server.login.password())
    log_in, logins = connection.auth.Authenticate, []

    def counted(request: Any, **options: Any) -> Any:
        logins.append(request.name)
        return log_in(request, **options)

    connection.auth.Authenticate = counted
    reads = [store._channel.read(rpc.RangeRequest(key=b"meridian/us/a"), "", 60.0) for _ in range(50)]
    await asyncio.gather(*reads)
    store._channel.forget_token(void)  # a refusal that arrives late
    await store.get("/a")
    assert logins == ["meridian"]


async def test_a_password_change_in_progress_is_waited_for(server: EtcdServer, store: EtcdMetadataStore) -> None:
    """It changes in etcd first, then in the file: retrying is all that is needed."""
    assert server.login.password_file is not None
    before = server.login.password_file.read_text()
    await store.put("/a", b"")
    try:
        await set_password(server, "another-password")
        with pytest.raises(MetadataUnavailable, match="rejects user"):
            await store.get("/a")
        server.login.password_file.write_text("another-password\n")
        assert await store.get("/a") is not None
    finally:
        server.login.password_file.write_text(before)
        await set_password(server, before.strip())


async def test_an_etcd_without_authentication_is_not_sent_a_password(tmp_path: Path) -> None:
    open_to_all = EtcdServer(tmp_path / "open")
    try:
        for name in ("root", "broker", "other"):
            (tmp_path / name).write_text(f"the password of {name}\n")
        login = Login("broker", tmp_path / "broker")
        with pytest.raises(MetadataError, match="has authentication disabled"):
            await EtcdMetadataStore.connect(open_to_all.url, PREFIX, login=login)
        pairs = {
            "metadataStoreUrl": f"etcd:{open_to_all.url}",
            "metadataStoreUser": "broker",
            "metadataStorePasswordFile": str(tmp_path / "broker"),
        }
        said: list[str] = []
        for _ in range(2):  # the second run has nothing left to do
            code = await asyncio.to_thread(run_secure_etcd, Settings.of(pairs), tmp_path / "root", said.append)
            assert code == 0
        assert "authentication is on" in said[0]
        store = await EtcdMetadataStore.connect(open_to_all.url, PREFIX, login=login)
        with pytest.raises(MetadataError, match="requires a password"):
            await EtcdMetadataStore.connect(open_to_all.url, PREFIX)
        (tmp_path / "broker").write_text("a new password\n")
        await secure(parse_endpoints(open_to_all.url), login, tmp_path / "root")
        await store.put("/a", b"")
        await store.close()
        with pytest.raises(StartFailed, match="is not that of its user root"):
            await asyncio.to_thread(run_secure_etcd, Settings.of(pairs), tmp_path / "other", said.append)
        assert not any("the password of" in line for line in said)
    finally:
        open_to_all.close()


async def test_a_starting_broker_waits_until_etcds_users_are_set_up(tmp_path: Path) -> None:
    """Another process creates them, so that a restart need not wait for it."""
    unready = EtcdServer(tmp_path / "unready")
    try:
        for name in ("root", "broker"):
            (tmp_path / name).write_text(f"the password of {name}\n")
        pairs = {
            "metadataStoreUrl": f"etcd:{unready.url}",
            "metadataStoreUser": "broker",
            "metadataStorePasswordFile": str(tmp_path / "broker"),
        }
        starting = asyncio.create_task(open_metadata(Settings.of(pairs), pytest.fail))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(starting), 0.3)
        login = Login("broker", tmp_path / "broker")
        await secure(parse_endpoints(unready.url), login, tmp_path / "root", keys=())
        with pytest.raises(MetadataLoginRefused, match="of this version grants that"):  # the broker waits for this
            await EtcdMetadataStore.connect(unready.url, PREFIX, login=login)
        await secure(parse_endpoints(unready.url), login, tmp_path / "root")
        store = await asyncio.wait_for(starting, 30)
        (tmp_path / "broker").write_text("a new password\n")
        again = asyncio.create_task(open_metadata(Settings.of(pairs), pytest.fail))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(again), 0.3)
        await secure(parse_endpoints(unready.url), login, tmp_path / "root")
        await (await asyncio.wait_for(again, 30)).close()
        await store.close()
    finally:
        unready.close()


class Door:
    """A proxy to etcd that can be shut: connections through it break, or stall."""

    def __init__(self, url: str) -> None:
        self._target = parse_endpoints(url)[0]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._carries = asyncio.Event()
        self._carries.set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    def stand_still(self) -> None:
        self._carries.clear()

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_etcd, to_etcd = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers += [writer, to_etcd]
        for source, sink in ((reader, to_etcd), (from_etcd, writer)):
            self._tasks.add(asyncio.create_task(self._carry(source, sink)))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await self._carries.wait()
            sink.write(data)
        sink.close()


@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_of_several_endpoints_a_live_one_is_used(
    server: EtcdServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("metadata", "watching"):
        monkeypatch.setattr(f"meridian_broker.engines.etcd.{module}.REQUEST_TIMEOUT", 2.0)
    first, second = Door(server.url), Door(server.url)
    await first.open()
    await second.open()
    urls = f"http://127.0.0.1:{free_port()},{first.url},{second.url}"  # nothing listens at the first endpoint
    store = await EtcdMetadataStore.connect(urls, PREFIX, login=server.login)
    watch = await begin(store, "/endpoints")
    await store.put("/endpoints", b"1")
    assert len(await next_changes(watch)) == 1
    if how == "dies":
        await first.shut()
    else:
        first.stand_still()
        with pytest.raises(MetadataUnavailable):
            await store.put("/endpoints", b"2")
    while True:
        try:
            await store.put("/endpoints", b"3")
            break
        except MetadataUnavailable:  # it was in flight when the connection broke
            continue
    await first.shut()
    assert (await next_changes(watch))[-1].record is not None
    await second.shut()
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        await store.get("/endpoints")
    await second.open()
    assert await store.get("/endpoints") is not None
    await end(watch)
    await store.close()
    await second.shut()


async def test_tls_in_both_directions(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    server_pair, mine, theirs = ours.issue("server"), ours.issue("mine"), others.issue("theirs")
    for name in ("root", "broker"):
        (tmp_path / name).write_text(f"the password of {name}\n")
    server = await tls_etcd(tmp_path / "etcd", server_pair, ours.trusted)
    try:
        login = Login("broker", tmp_path / "broker", ours.trusted, mine.certificate, mine.key)
        await secure(parse_endpoints(server.url), login, tmp_path / "root")
        store = await EtcdMetadataStore.connect(server.url, PREFIX, login=login)
        watch = await begin(store, "/")
        await store.put("/a", b"1")
        assert [change.path for change in await next_changes(watch)] == ["/a"]
        await end(watch)
        await store.close()
        strangers = {
            "an authority that did not sign etcd's certificate": replace(login, ca_file=others.trusted),
            "no certificate": replace(login, certificate_file=None, key_file=None),
            "a certificate of another authority": replace(
                login, certificate_file=theirs.certificate, key_file=theirs.key
            ),
        }
        for login_of_stranger in strangers.values():
            refused = EtcdMetadataStore(EtcdChannel(parse_endpoints(server.url), login_of_stranger), PREFIX)
            with pytest.raises(MetadataUnavailable):
                await refused._channel.read(rpc.RangeRequest(key=b"meridian/"), "asking", 1.0)
            await refused.close()
        plain = EtcdMetadataStore(EtcdChannel(parse_endpoints(server.url.replace("https", "http"))), PREFIX)
        with pytest.raises(MetadataUnavailable):
            await plain._channel.read(rpc.RangeRequest(key=b"meridian/"), "asking", 1.0)
        await plain.close()
        with pytest.raises(MetadataError, match=r"cannot read .*absent"):
            await EtcdMetadataStore.connect(server.url, PREFIX, login=replace(login, ca_file=tmp_path / "absent"))
    finally:
        await server.stop()


async def test_renewed_certificates_are_used_once_a_connection_breaks(tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    (tmp_path / "trusted.pem").write_bytes(before.trusted.read_bytes())
    server = await tls_etcd(tmp_path / "etcd", before.issue("server"))
    store = await EtcdMetadataStore.connect(
        server.url, PREFIX, login=replace(ANONYMOUS, ca_file=tmp_path / "trusted.pem")
    )
    watch = await begin(store, "/")
    try:
        await server.stop()
        (tmp_path / "trusted.pem").write_bytes(after.trusted.read_bytes())
        server = await tls_etcd(tmp_path / "etcd", after.issue("server"), port=server.port)
        while True:
            try:
                await store.put("/a", b"")
                break
            except MetadataUnavailable:
                continue
        assert (await next_changes(watch))[-1].path == "/a"
    finally:
        await end(watch)
        await store.close()
        await server.stop()


def test_no_password_shows_in_the_process_list(server: EtcdServer) -> None:
    listed = []
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended since
            listed.append(arguments.read_bytes())
    assert any(b"etcd" in one for one in listed)
    assert not any(server.login.password().encode() in one for one in listed)
