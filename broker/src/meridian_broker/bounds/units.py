# SPDX-License-Identifier: Apache-2.0
"""Units of the numbers in the table. The page of limits prints these words."""

from __future__ import annotations

Bytes = int
Messages = int
Entries = int
Chunks = int
Ids = int
Items = int
Keys = int
Names = int
Subscriptions = int
Topics = int
Words = int
Characters = int
Clients = int
Headers = int
Epochs = int
Requests = int
Milliseconds = int
Seconds = float
