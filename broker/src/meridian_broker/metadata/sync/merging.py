# SPDX-License-Identifier: Apache-2.0
"""Values that must not simply be lost when another one wins.

A topic's number of partitions only grows (R41). If a state with fewer wins, a region that has both writes the winner
again with the greater number, as a write of its own. So all paths keep the same order of states, and a region that
received only the smaller number receives the greater one next. Only a topic that was deleted and created again, by
somebody who knew of the deletion, may have fewer.
"""

from __future__ import annotations

import json
from typing import Any, Final

from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.stamped import Stamped, canonical

NUMBER: Final = "partitions"
CREATED: Final = "created"
TIME: Final = "timestamp"
"""When a region stored a schema. It is the same schema wherever and whenever it is stored."""


def is_merged(path: str) -> bool:
    """Whether the path has such a value."""
    return paths.scope_of(path) == paths.PARTITIONED_TOPICS


def united(path: str, one: Stamped, winner: Stamped) -> bytes | None:
    """The winner's value with the greater number; None: it has that already."""
    if not is_merged(path) or one.value is None or winner.value is None:
        return None
    ours, theirs = _shown(one), _shown(winner)
    if not ours.get(NUMBER, 0) > theirs.get(NUMBER, 0):
        return None
    return canonical({**theirs, NUMBER: ours[NUMBER]})


def loses_nothing(path: str, one: Stamped, winner: Stamped) -> bool:
    """Whether everything that a person has set in one is in the winner, or in ``united``."""
    has_facts = is_merged(path) or paths.scope_of(path) == paths.SCHEMAS
    if not has_facts or one.value is None or winner.value is None:
        return False
    return _set_by_people(one) == _set_by_people(winner)


def is_same_topic(path: str, one: Stamped, other: Stamped) -> bool:
    """Whether these are values of such a path, and of the same creation."""
    is_topic = is_merged(path) and None not in (one.value, other.value)
    return is_topic and _shown(one).get(CREATED) == _shown(other).get(CREATED)


def _set_by_people(state: Stamped) -> dict[str, Any]:
    return {key: value for key, value in _shown(state).items() if key not in (NUMBER, CREATED, TIME)}


def _shown(state: Stamped) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(state.value or b"{}")
    return shown
