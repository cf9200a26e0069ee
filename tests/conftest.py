# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers beside this file importable from every test.

With CI set, hypothesis draws the same examples every time, so that a run says something about the change it checks.
At a desk every run draws new ones, and ``make fuzz`` does so in both places.

SIGTERM ends a run as Ctrl-C does: with what failed so far, and pytest's closing line. A time limit sends it.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

signal.signal(signal.SIGTERM, signal.default_int_handler)
settings.register_profile("ci", derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")
