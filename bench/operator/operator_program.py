# SPDX-License-Identifier: Apache-2.0
"""The operator in its own process: argument 1 is the API server's port, argument 2 maps regions to admin URLs.

It ends with its standard input, and answers each line of it with the number of requests to each region so far.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from types import SimpleNamespace
from typing import Any

from meridian_operator.main import NUMBERS_PER_SECOND
from support.kubernetes.running_operator import RunningOperator


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    api: Any = SimpleNamespace(port=int(sys.argv[1]))
    urls = json.loads(sys.argv[2])
    with RunningOperator(api, urls, numbers_per_second=NUMBERS_PER_SECOND, spread=random.random) as operator:
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(operator.region_calls()), flush=True)


if __name__ == "__main__":
    main()
