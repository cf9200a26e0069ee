# SPDX-License-Identifier: Apache-2.0
"""One of several brokers of a region as a process.

``python member_program.py ID LEASE_SECONDS broker --set key=value ...``
"""

from __future__ import annotations

import os
import sys

from meridian_broker.server.broker import run_broker
from meridian_broker.server.lifeline import die_with_parent
from meridian_broker.server.main import start_logging
from meridian_broker.server.one_of_several import Membership
from meridian_broker.server.settings import Settings

if __name__ == "__main__":
    die_with_parent(os.getppid())
    start_logging("info")
    broker_id, lease_seconds, _, *assignments = sys.argv[1:]
    pairs = dict(one.split("=", 1) for one in assignments if one != "--set")
    membership = Membership(broker_id=broker_id, lease_seconds=float(lease_seconds))
    sys.exit(run_broker(Settings.of(pairs), membership=membership))
