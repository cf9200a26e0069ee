# SPDX-License-Identifier: Apache-2.0
"""What a run found: figures, targets and the load of the machine, for people or as one JSON object."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Final

WIDTH: Final = 56
"""Of a figure's name in the table."""


@dataclass(frozen=True, slots=True)
class Target:
    """One promise, and whether it is kept."""

    value: float
    limit: float
    met: bool


class Report:
    """Collects figures and targets, and prints them as they come unless only JSON is wanted."""

    def __init__(self, *, as_json: bool) -> None:
        """The load of the machine is taken now, and again by ``finish``."""
        self._as_json = as_json
        self._load_before = os.getloadavg()[0]
        self.figures: dict[str, float | int] = {}
        self.targets: dict[str, Target] = {}

    def title(self, text: str) -> None:
        self._say(text)

    def figure(self, name: str, value: float, shown: str = "") -> None:
        """:param shown: for people, instead of the number."""
        self.figures[name] = round(value, 3) if isinstance(value, float) else value
        number = f"{value:>14,.2f}" if isinstance(value, float) else f"{value:>11,}"
        self._say(f"  {name:{WIDTH}} {shown or number}")

    def at_most(self, name: str, value: float, limit: float) -> None:
        self._target(name, value, limit, "<=", met=value <= limit)

    def at_least(self, name: str, value: float, limit: float) -> None:
        self._target(name, value, limit, ">=", met=value >= limit)

    @property
    def missed(self) -> list[str]:
        return [name for name, target in self.targets.items() if not target.met]

    def machine(self) -> dict[str, Any]:
        return {"processors": os.cpu_count(), "load_before": self._load_before, "load_after": os.getloadavg()[0]}

    def finish(self) -> int:
        """Print the result. :returns: the exit code: 1 if a target is missed."""
        machine = self.machine()
        self._say(f"load of the machine: {machine['load_before']:.1f} before, {machine['load_after']:.1f} after")
        if self._as_json:
            targets = {name: asdict(target) for name, target in self.targets.items()}
            print(json.dumps({**self.figures, "targets": targets, "machine": machine}), flush=True)
        return 1 if self.missed else 0

    def _target(self, name: str, value: float, limit: float, sign: str, *, met: bool) -> None:
        self.figures[name] = round(value, 3)
        self.targets[name] = Target(round(value, 3), limit, met)
        verdict = "met" if met else "MISSED"
        self._say(f"  {name:{WIDTH}} {value:>14,.2f}  (target {sign} {limit:,g}: {verdict})")

    def _say(self, text: str) -> None:
        if not self._as_json:
            print(text, flush=True)
