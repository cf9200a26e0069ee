# SPDX-License-Identifier: Apache-2.0
"""``meridian up``: regions on one machine, each with one or several broker processes, watched and stopped together.

The supervisor does little on purpose. It starts what a region needs, waits until every region reports that it is
healthy, and then only watches. A broker that dies is reported but not restarted: the person who killed it may want to
see how the others react. Its ``broker.conf`` restarts it by hand, with the command that the report prints.

Stopping is a drain: SIGTERM to every broker, a bounded wait, then SIGKILL. The brokers stop before their bookies and
metadata stores, because they write to them until the end. Children run in sessions of their own, so that Ctrl-C at the
terminal reaches the supervisor alone, and none outlives a supervisor that is killed (see ``lifeline``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from meridian_broker.cli.output import NO, table
from meridian_broker.cli.programs import UpOptions
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server import limits
from meridian_broker.server.bookie_process import JARS, BookieProcesses, BookiesFailed
from meridian_broker.server.etcd_process import EtcdFailed, EtcdProcess
from meridian_broker.server.layout import BrokerPlan, Directory, RegionPlan, UpFailed, plan_regions, require_free_ports
from meridian_broker.server.settings import BY_KEY, ENVIRONMENT_PREFIX, Given, Settings, collect

__all__ = ["UpFailed", "run_up"]

Say = Callable[[str], None]

BROKER_PROGRAM: Final = (sys.executable, "-P", "-m", "meridian_broker.server.main", "broker")
"""The command of a child, before ``--config FILE --supervisor PID``."""

ENSEMBLE: Final = 3
QUORUMS: Final = {
    "managedLedgerDefaultEnsembleSize": ENSEMBLE,
    "managedLedgerDefaultWriteQuorum": ENSEMBLE,
    "managedLedgerDefaultAckQuorum": 2,
}
"""The defaults of these settings. Regions of fewer bookies get smaller ones."""


def run_up(options: UpOptions, say: Say, program: Sequence[str] = BROKER_PROGRAM) -> int:
    """Run the regions until SIGTERM or SIGINT. Returns 0 if all stopped in an orderly way, else 1.

    :param program: tests pass another program to see how a misbehaving child is treated.
    :raises UpFailed: the regions could not be started; those that were are stopped again.
    :raises SettingsError: a setting cannot be used.
    """
    given = collect(None, options.assignments, os.environ)
    plans = plan_regions(options, given)
    directory = Directory(options.data_directory)
    try:
        return asyncio.run(_run(options, given, plans, directory, say, program))
    finally:
        directory.close()


async def _run(
    options: UpOptions,
    given: Given,
    plans: list[RegionPlan],
    directory: Directory,
    say: Say,
    program: Sequence[str],
) -> int:
    settings = Settings.build(given)
    directory.require_same_stores(options.metadata, options.storage)
    require_free_ports(plans, settings.network.bind_address)
    directory.make_token()
    supervisor = Supervisor(options, given, plans, directory, say, program)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await supervisor.start(stop)
        if not stop.is_set():
            supervisor.announce()
            await supervisor.watch(stop)
    finally:
        # A second signal means: do not wait any longer.
        stop.clear()
        clean = await supervisor.stop(settings.process.broker_shutdown_timeout_ms / 1000, stop)
    return 0 if clean else NO


class Supervisor:
    """The child processes of one ``meridian up``."""

    def __init__(
        self,
        options: UpOptions,
        given: Given,
        plans: Sequence[RegionPlan],
        directory: Directory,
        say: Say,
        program: Sequence[str],
    ) -> None:
        self._options = options
        self._stores = {"metadata": options.metadata, "storage": options.storage}
        self._program = program
        self._given = given
        self._plans = plans
        self._directory = directory
        self._say = say
        self._etcds: dict[str, EtcdProcess] = {}
        self._bookies: dict[str, BookieProcesses] = {}
        self._brokers: dict[BrokerPlan, asyncio.subprocess.Process] = {}
        self._all_ended_well = True

    async def start(self, stop: asyncio.Event) -> None:
        """Start every region and wait until all are healthy, or until ``stop`` is set.

        :raises UpFailed: a metadata store or a broker does not come up.
        """
        for plan in self._plans:
            chosen = await self._metadata_settings(plan) | await self._storage_settings(plan)
            for broker in plan.brokers:
                self._directory.write_config(broker, chosen, self._given)
        self._directory.write_regions(self._plans, self._stores, {})
        for broker in self._every_broker():
            self._brokers[broker] = await _start_broker(broker, self._program)
        pids = {broker: process.pid for broker, process in self._brokers.items()}
        self._directory.write_regions(self._plans, self._stores, pids)
        deadline = time.monotonic() + limits.START_SECONDS_MAX
        # The health check asks this machine, so it must not go through a proxy.
        timeout = aiohttp.ClientTimeout(total=limits.HEALTH_ANSWER_SECONDS_MAX)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            for broker in self._every_broker():
                await self._wait_until_healthy(http, broker, deadline, stop)

    def _every_broker(self) -> list[BrokerPlan]:
        return [broker for plan in self._plans for broker in plan.brokers]

    async def _metadata_settings(self, plan: RegionPlan) -> dict[str, str]:
        if self._options.metadata == "embedded":
            return {"metadataStoreUrl": f"sqlite:{plan.directory / 'data' / 'metadata.sqlite'}"}
        try:
            # Bookies cannot log in to etcd with a password.
            is_secured = self._options.storage == "local"
            etcd = await EtcdProcess.start(plan.directory / "etcd", secured=is_secured)
        except EtcdFailed as error:
            raise UpFailed(f"region {plan.name}: {error}") from error
        self._etcds[plan.name] = etcd
        if not is_secured:
            return {"metadataStoreUrl": f"etcd:{etcd.url}"}
        return {
            "metadataStoreUrl": f"etcd:{etcd.url}",
            "metadataStoreUser": etcd.login.user,
            "metadataStorePasswordFile": str(etcd.login.password_file),
        }

    async def _storage_settings(self, plan: RegionPlan) -> dict[str, str]:
        if self._options.storage == "local":
            return {}
        count, jars = self._options.bookies, self._options.bookkeeper_jars or JARS
        self._say(f"region {plan.name}: starting {count} bookies")
        try:
            etcd = self._etcds[plan.name].url
            self._bookies[plan.name] = await BookieProcesses.start(plan.directory / "bookies", etcd, count, jars)
        except (BookiesFailed, MetadataError) as error:
            raise UpFailed(f"region {plan.name}: {error}") from error
        fewer = {} if count >= ENSEMBLE else {key: str(min(count, size)) for key, size in QUORUMS.items()}
        return {"managedLedgerStorage": "bookkeeper", **fewer}

    async def _wait_until_healthy(
        self, http: aiohttp.ClientSession, plan: BrokerPlan, deadline: float, stop: asyncio.Event
    ) -> None:
        process = self._brokers[plan]
        while not stop.is_set() and not await _healthy(http, plan):
            if process.returncode is not None:
                how = _ending(process.returncode)
                raise UpFailed(f"the {plan} {how} while starting\n{_log_end(plan.log_file)}")
            if time.monotonic() > deadline:
                raise UpFailed(
                    f"the {plan} is not healthy after {limits.START_SECONDS_MAX:.0f} s\n{_log_end(plan.log_file)}"
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), limits.HEALTH_POLL_SECONDS)

    def announce(self) -> None:
        """Say where the regions are."""
        if self._etcds:
            self._say(f"metadata: {next(iter(self._etcds.values())).binary}, one per region")
        brokers = self._every_broker()
        rows = [(one.name, one.service_url, one.admin_url, self._brokers[one].pid) for one in brokers]
        self._say(table(("broker" if self._options.brokers > 1 else "region", "clients", "admin", "process"), rows))
        if self._options.brokers > 1:
            self._say("Client URLs with all brokers of a region, so that any of them may be down:")
            for plan in self._plans:
                self._say(f"  {plan.name}  {plan.service_url_tls or plan.service_url}")
        self._say(f"All regions are up. Their data is in {self._directory.path}. Ctrl-C stops them.")

    async def watch(self, stop: asyncio.Event) -> None:
        """Report every broker that ends, until ``stop`` is set or none is left."""
        waiting = {asyncio.create_task(self._brokers[plan].wait()): plan for plan in self._every_broker()}
        stopping = asyncio.create_task(stop.wait())
        try:
            while waiting and not stopping.done():
                done, _ = await asyncio.wait([stopping, *waiting], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    self._report_death(waiting.pop(task))
        finally:
            stopping.cancel()
            for task in waiting:
                task.cancel()
            await asyncio.gather(stopping, *waiting, return_exceptions=True)
        if not waiting:
            self._say("No broker is running any more.")

    def _report_death(self, plan: BrokerPlan) -> None:
        process = self._brokers.pop(plan)
        self._all_ended_well = False
        self._say(
            f"The {plan} (process {process.pid}) {_ending(process.returncode)}. "
            f"The others keep running. Its log: {plan.log_file}\n"
            f"Start it again: {shlex.join(['meridian', 'broker', '--config', str(plan.config_file)])}"
        )

    async def stop(self, drain_seconds: float, hurry: asyncio.Event) -> bool:
        """Drain the brokers, then stop their bookies and metadata stores. True when no broker was killed or had died.

        :param hurry: set when the person asks a second time; the brokers still running are killed then.
        """
        limit = drain_seconds + limits.STOP_MARGIN_SECONDS
        if self._brokers:
            self._say(f"Stopping: brokers get {limit:.0f} s to finish and store open work. Ctrl-C kills them now.")
        for process in self._brokers.values():
            _signal(process, signal.SIGTERM)
        outcomes = await asyncio.gather(*(self._stop_broker(plan, limit, hurry) for plan in self._brokers))
        await asyncio.gather(*(bookies.stop() for bookies in self._bookies.values()))
        await asyncio.gather(*(etcd.stop() for etcd in self._etcds.values()))
        return all(outcomes) and self._all_ended_well

    async def _stop_broker(self, plan: BrokerPlan, limit: float, hurry: asyncio.Event) -> bool:
        process = self._brokers[plan]
        began = time.monotonic()
        ended, hurried = asyncio.create_task(process.wait()), asyncio.create_task(hurry.wait())
        try:
            await asyncio.wait([ended, hurried], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            in_time = ended.done()
            if not in_time:
                _signal(process, signal.SIGKILL)
            code = await ended
        finally:
            hurried.cancel()
            await asyncio.gather(hurried, return_exceptions=True)
        seconds = time.monotonic() - began
        if in_time and code == 0:
            self._say(f"{plan.name} stopped in {seconds:.1f} s")
            return True
        how = _ending(code) if in_time else "did not stop and was killed"
        self._say(f"The {plan} {how} after {seconds:.1f} s. Its log: {plan.log_file}")
        return False


async def _start_broker(plan: BrokerPlan, program: Sequence[str]) -> asyncio.subprocess.Process:
    """A broker as a child that logs to its file and does not outlive this process."""
    # The environment's settings are already in the file; left in place they would override its ports and names.
    environment = {
        name: value for name, value in os.environ.items() if name.removeprefix(ENVIRONMENT_PREFIX) not in BY_KEY
    }
    with plan.log_file.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *program,
            *("--config", str(plan.config_file), "--supervisor", str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


async def _healthy(http: aiohttp.ClientSession, plan: BrokerPlan) -> bool:
    try:
        async with http.get(f"{plan.admin_url}/admin/v2/brokers/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _ending(code: int | None) -> str:
    """How a process ended, as the rest of a sentence."""
    if code is None:
        return "is still running"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _log_end(file: Path) -> str:
    """The last lines of a log, for an error."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - limits.LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-limits.LOG_TAIL_LINES :]
    except OSError as error:
        return f"its log {file} cannot be read: {error}"
    return "\n".join([f"the end of {file}:", *(f"    {line}" for line in lines)])
