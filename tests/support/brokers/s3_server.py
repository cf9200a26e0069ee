# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for tests: versitygw on a directory. ``scripts/s3`` builds it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from meridian_broker.engines.s3.place import S3Place
from support.brokers.broker_process import wait_until
from support.brokers.certificates import Pair
from support.brokers.free_ports import free_port

BUILT = Path(__file__).parents[3] / ".venv/libexec/versitygw"
BUCKET = "messages"
KEY, SECRET = "access-of-tests", "a-secret-of-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
"""The environment variables of a client."""


@functools.cache
def s3_missing() -> str | None:
    """Why tests with an S3 server cannot run here; None when they can."""
    return None if _binary() else "there is no versitygw on this machine: scripts/s3 builds one"


def _binary() -> str | None:
    named = os.environ.get("MERIDIAN_TEST_S3_SERVER")
    return named or (str(BUILT) if BUILT.exists() else shutil.which("versitygw"))


class S3Server:
    """A server with one bucket. Its objects and address survive ``kill`` and ``start``."""

    def __init__(self, directory: Path, pair: Pair | None = None) -> None:
        """:param pair: the certificate to serve TLS with."""
        self._root, self._beside = directory / "buckets", directory / "beside"
        self._log = directory / "s3.log"
        self._pair = pair
        self.port = free_port()
        for made in (self.bucket, self._beside):
            made.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bucket(self) -> Path:
        """The directory where its objects are files."""
        return self._root / BUCKET

    @property
    def place(self) -> S3Place:
        scheme = "http" if self._pair is None else "https"
        return S3Place(
            bucket=BUCKET, region="us-east-1", endpoint=f"{scheme}://127.0.0.1:{self.port}", timeout_seconds=20
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of a broker that offloads to it."""
        place = self.place
        return {
            "managedLedgerOffloadDriver": "S3",
            "s3ManagedLedgerOffloadBucket": place.bucket,
            "s3ManagedLedgerOffloadRegion": place.region,
            "s3ManagedLedgerOffloadServiceEndpoint": place.endpoint,
        }

    def objects(self) -> list[Path]:
        """The files of all objects."""
        return sorted(path for path in self.bucket.rglob("*") if path.is_file())

    def start(self) -> None:
        """Start it, on the address it had before."""
        binary = _binary()
        assert binary is not None
        tls = () if self._pair is None else ("--cert", str(self._pair.certificate), "--key", str(self._pair.key))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(binary, "--port", f"127.0.0.1:{self.port}", "--quiet", *tls),
                    *("posix", "--sidecar", str(self._beside), str(self._root)),
                ],
                env=os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "the S3 server to listen")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def pause(self) -> None:
        """SIGSTOP: the kernel accepts connections, but nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
