# SPDX-License-Identifier: Apache-2.0
"""The end of a run: figures, targets and the load of the machine, for people or as one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any


def finish(figures: Mapping[str, Any], targets: Mapping[str, Any], load_before: float, *, as_json: bool) -> int:
    """Print the result.

    :param targets: dataclasses whose ``met`` says whether the target was met.
    :returns: the exit code: 1 if a target is missed.
    """
    machine = {"processors": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    if as_json:
        judged = {name: asdict(target) for name, target in targets.items()}
        json.dump({**figures, "targets": judged, "machine": machine}, sys.stdout)
        print()
    else:
        print(f"load of the machine: {machine['load_before']:.1f} before, {machine['load_after']:.1f} after")
    return 0 if all(target.met for target in targets.values()) else 1
