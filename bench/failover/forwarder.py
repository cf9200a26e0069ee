# SPDX-License-Identifier: Apache-2.0
"""A forwarder between regions: forwards connections, counts their bytes, and can go silent. Its own process.

``forwarder.py NAME=LISTEN:TARGET ...``. Lines on standard input: ``cut NAME ...``, ``heal NAME ...``, ``count``; each
is answered with one line of JSON, the bytes of payload that passed so far by name, in both directions. A cut loses
nothing and notifies nobody: bytes wait, as when a network drops packets. Data in flight when the connection was cut
arrives after the healing, as with TCP.
"""

from __future__ import annotations

import asyncio
import json
import sys

CHUNK_BYTES = 1 << 16


class Way:
    """One listening port and the address behind it."""

    def __init__(self, target: int) -> None:
        self.passed = 0
        self.whole = asyncio.Event()
        self.whole.set()
        self._target = target

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            await self.whole.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        pumps = [asyncio.create_task(pump) for pump in (self._pump(reader, far_writer), self._pump(far_reader, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()
        far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await self.whole.wait()
            if not data:
                return
            self.passed += len(data)
            writer.write(data)
            await writer.drain()


async def main(arguments: list[str]) -> None:
    ways: dict[str, Way] = {}
    for argument in arguments:
        name, _, ports = argument.partition("=")
        listen, target = (int(port) for port in ports.split(":"))
        ways[name] = Way(target)
        await asyncio.start_server(ways[name].serve, "127.0.0.1", listen)
    print(json.dumps({}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        what, *names = line.split()
        for name in names:
            if what == "cut":
                ways[name].whole.clear()
            else:
                ways[name].whole.set()
        print(json.dumps({name: way.passed for name, way in ways.items()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
