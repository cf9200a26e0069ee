# SPDX-License-Identifier: Apache-2.0
"""One seed: three regions, a few rounds of trouble and calm, and the failures found."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from actors import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Producer,
    Subscription,
    Wanderer,
    offered,
    publish_once,
    read_all,
)
from journal import Journal
from oracle import Judge, Must, Round, wrong
from trouble import Trouble
from world import REGIONS, World

PLAIN, PARTED = "persistent://public/default/plain", "persistent://public/default/parted"
PARTITIONS = 2
USED = (
    Subscription(PLAIN, "shared", SHARED),
    Subscription(PLAIN, "key-shared", KEY_SHARED),
    Subscription(PLAIN, "failover", FAILOVER),
    Subscription(PLAIN, "exclusive", EXCLUSIVE),
    Subscription(PLAIN, "rewound", SHARED, rewound=True),
    Subscription(PLAIN, "origin", SHARED, origin_scope=True),
    Subscription(PARTED, "shared", SHARED, PARTITIONS),
    Subscription(PARTED, "failover", FAILOVER, PARTITIONS),
    Subscription(PARTED, "rewound", KEY_SHARED, PARTITIONS, rewound=True),
)
SCOPES = ("local", "origin")
EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}
PATIENCE = 60.0
LOOPS_PATIENCE = 100.0
"""After trouble: the longest pause of any periodic work is a minute."""
LOOPS_FAILING = "loops failing at end"
QUIET_MS = (600, 4000)
"""Silence after which nothing more is expected; the second if leases may have to move between regions first."""


class Story:
    """Call ``play``; then ``wrongs`` and ``counts`` have the outcome."""

    def __init__(self, seed: int, directory: Path, say: Callable[[str], None]) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self._say = say
        self._random = random.Random(seed)
        self._journal = Journal()
        self._trims = seed % 2 == 1
        self._world = World(directory, self._journal, self._trims)
        self._partitions = PARTITIONS
        self._scoped: set[Subscription] = set()
        self._owed: dict[Subscription, set[str] | None] = {}
        """What each subscription delivered at the last calm; None: it was recreated at the earliest message."""
        self._stored: dict[str, set[str]] = {}
        self._unsure: dict[Subscription, set[str]] = {}
        self._calm_since = 0.0
        """When the last trouble was over."""

    def play(self, rounds: int, seconds: float) -> None:
        with self._world:
            self._prepare()
            self._world.copy_disk(self._random.choice(REGIONS))
            if self._rounds(rounds, seconds):
                self._verify()
            self._look_at_loops()

    def _rounds(self, rounds: int, seconds: float) -> bool:
        """False: something was wrong, and the rest was skipped."""
        for number in range(rounds):
            began = self._journal.write("round begins", note=str(number))
            self._trouble(number, seconds)
            self._calm_since = time.monotonic()
            self._say(f"seed {self.seed}: round {number}: calm after {self._seconds():.0f} s")
            if not self._calm():
                return False
            self._say(f"seed {self.seed}: round {number}: in step after {self._seconds():.0f} s")
            if not self._judge(began):
                return False
            self._say(f"seed {self.seed}: round {number}: judged after {self._seconds():.0f} s")
            self._unsure.clear()
            self.counts["rounds"] += 1
            if number + 1 < rounds:
                self._between()
        return True

    def _seconds(self) -> float:
        return time.monotonic() - self._journal.began

    def _prepare(self) -> None:
        first = REGIONS[0]
        self._expect(self._world.http(first, "PUT", f"/admin/v2/{PARTED.replace('://', '/')}/partitions", PARTITIONS))
        self._expect(self._world.http(first, "PUT", f"/admin/v2/{PLAIN.replace('://', '/')}"))
        for used in USED:
            self._create(first, used)
            if used.origin_scope:
                self._until(partial(self._set_scope, used, first, "origin"), "the dispatch scope to be set")
        for used in USED:
            self._until(partial(self._in_step, used), f"{used.topic} {used.name} to be everywhere")

    def _create(self, region: str, used: Subscription, place: dict[str, int] = EARLIEST) -> None:
        where = self._world.subscription(used.topic, used.name)
        self._until(
            lambda: self._world.http(region, "PUT", f"{where}?replicated=true", place)[0] in (204, 409),
            f"{used.name} to be created",
        )

    def _expect(self, answer: tuple[int, Any]) -> None:
        if answer[0] >= 300 or not answer[0]:
            raise SystemExit(f"bench: refused: {answer}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(f"bench: waited {PATIENCE:.0f} s for {what}, in vain")
            time.sleep(0.1)

    def _trouble(self, number: int, seconds: float) -> None:
        mark = f"{self.seed}.{number}"
        crowd: list[Any] = [
            Producer(self._world, self._journal, region, [PLAIN, PARTED], f"{mark}.{region}:{number}")
            for region in REGIONS
        ]
        for used in USED:
            homes = REGIONS if used.origin_scope else ("", "")
            for place, home in enumerate(homes):
                crowd.append(Wanderer(self._world, self._journal, used, f"{mark}.{used}.{place}", home))
        persons = threading.Event()
        person = threading.Thread(target=self._person, args=(persons, random.Random(f"{mark}.person")), daemon=True)
        for one in (*crowd, person):
            one.start()
        Trouble(self._world, random.Random(f"{mark}.trouble"), self.counts).happen(seconds)
        for one in crowd:
            one.finish()
        persons.set()
        for one in (*crowd, person):
            one.join(PATIENCE)
            if one.is_alive():
                raise SystemExit(f"bench: {one} does not end")
            if isinstance(one, Wanderer) and one.problem is not None:
                raise SystemExit(f"bench: a consumer failed: {one.problem!r}")

    def _person(self, done: threading.Event, chance: random.Random) -> None:
        """Skips, clears and resets subscriptions that may be rewound."""
        rewound = [used for used in USED if used.rewound]
        while not done.wait(chance.uniform(1, 4)):
            used, region, what = (
                chance.choice(rewound),
                chance.choice(REGIONS),
                chance.choice(("skip", "clear", "time")),
            )
            if not self._world.lives(region):
                continue
            where = self._world.subscription(used.topic, used.name)
            back = chance.uniform(0, 6)
            asked = self._journal.rewind(region, used.topic, used.name, what, time.monotonic() - back)
            path = {"skip": "skip/7", "clear": "skip_all", "time": f"resetcursor/{int((time.time() - back) * 1000)}"}
            status, said = self._world.http(region, "POST", f"{where}/{path[what]}")
            self._journal.done(asked, 200 <= status < 300, str(said))

    # Calm

    def _calm(self) -> bool:
        """Wait until all regions report that they are in step; record if they do not."""
        until = time.monotonic() + PATIENCE
        while problems := [problem for used in USED if (problem := self._out_of_step(used))]:
            if time.monotonic() > until:
                self._wrong(f"not in step after {PATIENCE:.0f} s of calm: {problems[0]}")
                self._say_more()
                for event in self._journal.events:
                    if not event.body:
                        self._say(f"    {event.told(self._journal.began)}")
                return False
            self._accept_gaps()
            time.sleep(0.2)
        return True

    def _accept_gaps(self) -> None:
        """After an old disk was put back, entries that the region lacks may be gone everywhere: then it waits for an
        operator."""
        topics = [PLAIN, *(f"{PARTED}-partition-{one}" for one in range(self._partitions))]
        for region in REGIONS:
            if self._trims and self._world.put_back_at[region]:
                self.counts["gaps accepted"] += sum(self._world.accept_gaps(region, topic) for topic in topics)

    def _say_more(self) -> None:
        """What every region reports about every subscription and link, and whether they get in step after all: being
        stuck is a different fault than being slow."""
        for used in USED:
            for part in range(self._partitions) if used.partitions else (-1,):
                topic = used.topic if part < 0 else f"{used.topic}-partition-{part}"
                for region in REGIONS:
                    status = self._world.status(region, topic, used.name)
                    links = self._world.stats(region, topic).get("replication", {})
                    self._say(f"    {topic} {used.name} in {region}: {json.dumps(status)}; links: {json.dumps(links)}")
        until = time.monotonic() + PATIENCE
        while stuck := any(self._out_of_step(used) for used in USED):
            if time.monotonic() > until:
                break
            time.sleep(1)
        outcome = "still not" if stuck else "now"
        self._say(f"    {outcome} in step, {time.monotonic() - self._calm_since:.0f} s after calm")

    def _in_step(self, used: Subscription) -> bool:
        return not self._out_of_step(used)

    def _out_of_step(self, used: Subscription) -> str:
        """What is not in its final state yet; empty: all regions are at the same position."""
        places = [used.topic]
        if used.partitions:
            for region in REGIONS:
                found = self._world.http(region, "GET", f"/admin/v2/{used.topic.replace('://', '/')}/partitions")
                if found[0] != 200 or found[1].get("partitions") != self._partitions:
                    return f"{used.topic} in {region} does not have {self._partitions} partitions: {found}"
            places = [f"{used.topic}-partition-{one}" for one in range(self._partitions)]
        for topic in places:
            seen = {region: self._world.status(region, topic, used.name) for region in REGIONS}
            for region, one in seen.items():
                if "problem" in one:
                    return str(one["problem"])
                for peer in one["peers"]:
                    if peer["reason"] or peer["lag_entries"] or peer["lag_ms"]:
                        return f"{topic} {used.name} in {region}: {json.dumps(peer)}"
            same = ("set_size", "set_bytes", "floors") if self._may_lack(used) else ("backlog",)
            for key in (*same, "epoch", "dispatch_scope"):
                if len({json.dumps(one[key], sort_keys=True) for one in seen.values()}) > 1:
                    return f"{topic} {used.name}: {key} is " + str({name: one[key] for name, one in seen.items()})
            for region in REGIONS:
                for other, link in self._world.stats(region, topic).get("replication", {}).items():
                    if not link["connected"] or link["replicationBacklog"] or link["hold"]:
                        return f"{topic} from {region} to {other}: {json.dumps(link)}"
        return ""

    def _may_lack(self, used: Subscription) -> bool:
        """A seek rewinds over what its region stores: another one may have trimmed some of that, and owes less."""
        return used.rewound and self._trims

    def _judge(self, began: float) -> bool:
        stored = {
            topic: {region: list(read_all(self._world, region, topic, parts)) for region in REGIONS}
            for topic, parts in ((PLAIN, 0), (PARTED, self._partitions))
        }
        seen = Round(began, stored, self._trims, self._owed, self._stored, self._unsure)
        judge = Judge(self._world, self._journal, seen)
        for topic in stored:
            self.counts["messages"] += len(judge.published(topic))
            for body in judge.lost(topic):
                self._wrong("lost", topic, "", body)
            for body in judge.differs(topic):
                self._wrong("is not stored as often in all regions", topic, "", body)
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda used: self._judge_one(judge, used, stored[used.topic]), USED):
                pass
        for topic, found in stored.items():
            self._stored[topic] = set.union(*map(set, found.values()))
        return not self.wrongs

    def _judge_one(self, judge: Judge, used: Subscription, stored: dict[str, list[str]]) -> None:
        """:param stored: bodies by region."""
        verdicts, copies = judge.verdicts(used), judge.copies(used.topic)
        for body, why in judge.again(used):
            self._wrong(f"came again: {why}", used.topic, used.name, body)
        for must in Must:
            self.counts[must.value] += sum(one is must for one in verdicts.values())
        came: dict[str, Counter[str]] = {}
        for region in random.Random(f"{self.seed}.{used}.{self.counts['rounds']}").sample(REGIONS, len(REGIONS)):
            here = set(stored[region]) if self._may_lack(used) else verdicts.keys()
            expected = {body for body, must in verdicts.items() if must is Must.COME and body in here}
            waited_for = expected.union(*came.values()) & here if came else expected
            found = offered(self._world, region, used, waited_for, QUIET_MS[used in self._scoped and not came])
            unsure = {one for one, must in verdicts.items() if must is Must.COME and one not in here}
            for body, why in wrong(verdicts | dict.fromkeys(unsure, Must.UNKNOWN), found, copies):
                self._wrong(f"{why} in {region}", used.topic, used.name, body)
            came[region] = Counter(found)
            for other, before in came.items():
                for body in (before - came[region]) + (came[region] - before):
                    if not self._may_lack(used) or body in here & set(stored[other]):
                        self._wrong(f"is delivered in one of {other} and {region} only", used.topic, used.name, body)
        self._owed[used] = set().union(*came.values())

    def _between(self) -> None:
        """Actions that happen only while nothing else does."""
        if self._random.random() < 0.7:
            self._world.copy_disk(self._random.choice(REGIONS))
            self.counts["copies"] += 1
        if self._trims and self._random.random() < 0.5:
            self._clear()
        if self._random.random() < 0.5:
            self._make_anew()
        if self._random.random() < 0.25:
            self._grow()
        if self._random.random() < 0.3:
            used = self._random.choice([one for one in USED if not one.origin_scope])
            self._set_scope(used, self._random.choice(REGIONS), self._random.choice(SCOPES))

    def _set_scope(self, used: Subscription, region: str, scope: str) -> bool:
        done = self._world.set_scope(region, used.topic, used.name, scope)
        if done:
            (self._scoped.add if scope == "origin" else self._scoped.discard)(used)
            self.counts[f"scope {scope}"] += 1
        return done

    def _grow(self) -> None:
        """Add a partition, also while a region is away; that region learns of it on its return."""
        region, away = self._random.sample((*REGIONS, ""), 2)
        if not region:
            region, away = away, region
        if away:
            self._world.die(away)
        path = f"/admin/v2/{PARTED.replace('://', '/')}/partitions"
        status, _ = self._world.http(region, "POST", path, self._partitions + 1, 30)
        if 200 <= status < 300:
            self._partitions += 1
            self.counts["grown"] += 1
        if away:
            self._world.live(away)

    def _clear(self) -> None:
        """Clear all backlogs, so that everything can be trimmed."""
        for used in USED:
            region = self._random.choice(REGIONS)
            self._expect(
                self._world.http(region, "POST", self._world.subscription(used.topic, used.name) + "/skip_all")
            )
            self._owed[used] = set()
        self._journal.write("all backlogs cleared")
        for used in USED:
            self._until(partial(self._in_step, used), f"{used.topic} {used.name} to be clear")
        self.counts["cleared"] += 1

    def _make_anew(self) -> None:
        """Unsubscribe and recreate the subscription, possibly while a region is away."""
        used, away = self._random.choice(USED), self._random.choice((*REGIONS, ""))
        if used.origin_scope:
            return
        region = self._random.choice([one for one in REGIONS if one != away])
        if away:
            self._world.die(away)
            self._unsure[used] = {away}
        path = self._world.subscription(used.topic, used.name) + ("?force=true" if away else "")
        asked = self._journal.rewind(region, used.topic, used.name, "recreate")
        status, said = self._world.http(region, "DELETE", path, seconds=30)
        if status != 204:
            self._wrong(f"{used.topic} {used.name} cannot be deleted in {region}: {status} {said}")
        # Where regions trim, each has its own earliest message.
        self._create(region, used, LATEST if self._trims else EARLIEST)
        self._journal.done(asked, True)
        self._owed[used] = set() if self._trims else None
        self._scoped.discard(used)
        self.counts["made anew"] += 1
        if away:
            self._world.live(away)

    def _verify(self) -> None:
        listed = ",".join(f"{region}={self._world.admin_url(region)}" for region in REGIONS)
        command = [sys.executable, "-P", "-m", "meridian_broker.server.main", "verify", "--regions", listed, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            self._wrong(f"meridian verify: exit code {done.returncode}: {done.stderr[-500:]}")
            return
        restored = any(self._world.put_back_at.values())
        rewound = {used.name for used in USED if self._may_lack(used)}
        excused = [
            (restored and one["reason"] == "Overclaimed")
            or (one["subscription"] in rewound and one["reason"] == "OwedElsewhere")
            for one in found["findings"]
        ]
        findings = [one for one, is_excused in zip(found["findings"], excused, strict=True) if not is_excused]
        if findings or (done.returncode and not restored and not any(excused)):
            self._wrong(f"meridian verify: {found['state']}: {found['summary']}: {json.dumps(findings)[:1500]}")

    def _look_at_loops(self) -> None:
        """Each kind of periodic work must complete a turn without error, in every region, after the last trouble."""
        for region in REGIONS:
            # The upkeep of ledger files sleeps until there is something to do: a deleted ledger wakes it.
            topic = f"persistent://public/default/short-lived-{region}"
            publish_once(self._world, region, topic)
            self._expect(self._world.http(region, "DELETE", f"/admin/v2/{topic.replace('://', '/')}?force=true"))
        until = self._calm_since + LOOPS_PATIENCE
        while failing := self._failing_loops():
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        self.counts[LOOPS_FAILING] = len(failing)
        for what in failing:
            self._wrong(what)

    def _failing_loops(self) -> list[str]:
        return [
            f"{region}: no turn to {loop['name']} went well since the last trouble: {loop['problem'] or 'none ended'}"
            for region in REGIONS
            for loop in self._world.loops(region)
            if loop["problem"] or loop["secondsSinceSuccess"] > time.monotonic() - self._calm_since
        ]

    def _wrong(self, what: str, topic: str = "", name: str = "", body: str = "") -> None:
        self.wrongs.append(" ".join(part for part in (topic, name, body, what) if part))
        if len(self.wrongs) <= 12:
            self._say(f"seed {self.seed}: WRONG: {self.wrongs[-1]}")
        if body and len(self.wrongs) <= 3:
            for line in self._journal.story(topic, name, body):
                self._say(f"    {line}")
