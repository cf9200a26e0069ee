# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers beside this file importable from every test.

With CI set, hypothesis draws the same examples every time, so that a run says something about the change it checks.
At a desk every run draws new ones, and ``make fuzz`` does so in both places.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")
