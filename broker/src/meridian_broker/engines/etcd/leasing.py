# SPDX-License-Identifier: Apache-2.0
"""A lease in etcd and the task that keeps it alive."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
from aetcd import rpc

from meridian_broker.engines.clock import monotonic
from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.metadata.store import MetadataError

MARGIN = 0.2
"""Fraction of a lease's time, at its end, during which the holder must not rely on it: clocks run at different
speeds."""


class EtcdLease:
    """Renewed every third of its time. Once expired by the holder's clock, it is over, even if etcd still has it.

    Time counts from before a request is sent, so that a slow answer never makes the lease look longer than it is.
    """

    def __init__(self, channel: EtcdChannel, lease_id: int, ttl: float, asked_at: float) -> None:
        self._channel = channel
        self._id = lease_id
        self._ttl = ttl
        self._valid_until = asked_at + ttl * (1 - MARGIN)
        self._task = asyncio.get_running_loop().create_task(self._keep_alive(), name=f"lease-{lease_id:x}")

    @classmethod
    async def grant(cls, channel: EtcdChannel, ttl_seconds: float) -> EtcdLease:
        asked_at = monotonic()
        whole = max(1, -int(-ttl_seconds // 1))  # etcd counts whole seconds: round up
        with channel.errors("taking a lease"):
            request = rpc.LeaseGrantRequest(TTL=whole)
            answer = await channel.call(lambda at: at.leases.LeaseGrant, request, REQUEST_TIMEOUT)
        return cls(channel, answer.ID, answer.TTL, asked_at)

    @property
    def lease_id(self) -> int:
        return self._id

    def valid_until(self) -> float:
        return self._valid_until

    def lost(self) -> bool:
        return monotonic() >= self._valid_until

    async def revoke(self) -> None:
        self._valid_until = float("-inf")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._revoke_in_etcd()

    async def _revoke_in_etcd(self) -> None:
        """If this fails, the lease expires in etcd by itself."""
        with suppress(MetadataError), self._channel.errors("revoking a lease"):
            request = rpc.LeaseRevokeRequest(ID=self._id)
            await self._channel.call(lambda at: at.leases.LeaseRevoke, request, REQUEST_TIMEOUT)

    async def _keep_alive(self) -> None:
        pause = self._ttl / 3
        while True:
            await asyncio.sleep(pause)
            asked_at = monotonic()
            if asked_at >= self._valid_until:
                break
            pause = self._ttl / 20  # retry soon, unless it succeeds
            with suppress(MetadataError), self._channel.errors("renewing a lease"):
                left = await self._renew(timeout=max(0.1, self._valid_until - asked_at))
                if left <= 0:
                    break
                if not self.lost():
                    self._valid_until = asked_at + left * (1 - MARGIN)
                    pause = left / 3
        self._valid_until = float("-inf")
        await self._revoke_in_etcd()

    async def _renew(self, timeout: float) -> float:
        """Renew it. Returns the seconds left; 0: etcd no longer knows the lease."""
        connection, headers = await self._channel.opened(timeout)
        call = connection.leases.LeaseKeepAlive(
            iter([rpc.LeaseKeepAliveRequest(ID=self._id)]), timeout=timeout, wait_for_ready=True, metadata=headers
        )
        try:
            async for answer in call:
                return float(answer.TTL)
            return 0.0
        except grpc.aio.AioRpcError as error:
            self._channel.failed(connection, headers, error)
            raise
        finally:
            call.cancel()
