# SPDX-License-Identifier: Apache-2.0
"""One region's broker as a process that a test can kill: ``python broker_program.py key=value ...``."""

from __future__ import annotations

import os
import sys

from meridian_broker.server.broker import run_broker
from meridian_broker.server.lifeline import die_with_parent
from meridian_broker.server.settings import Settings

if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(run_broker(Settings.of(dict(one.split("=", 1) for one in sys.argv[1:]))))
