# SPDX-License-Identifier: Apache-2.0
"""What the numbers of the table count. The page of limits prints these words."""

from __future__ import annotations

Bytes = int
Messages = int
Entries = int
Chunks = int
Ids = int
Words = int
Characters = int
Clients = int
Headers = int
Epochs = int
Requests = int
Milliseconds = int
Seconds = float
