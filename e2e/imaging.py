# SPDX-License-Identifier: Apache-2.0
"""The images that pods are made of, each built and loaded once, however many walks need it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from clusters import Cluster
from earlier import Earlier

TAG: Final = "0.1.0"
"""Of this version's images."""
BUILD_SECONDS: Final = 900


class Images:
    """Builds one at a time, beside the tests. Use it as a context manager, which waits for what was begun."""

    def __init__(self) -> None:
        self._builder = ThreadPoolExecutor(1)
        self._built: dict[str, Future[str]] = {}
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._builder.shutdown(cancel_futures=True)

    def are_loaded(self, names: Iterable[str]) -> None:
        """Somebody else has built these and loaded them."""
        self._loaded |= {_image(name, TAG) for name in names}

    def build(self, where: Cluster, names: Iterable[str], tag: str = TAG) -> None:
        """Begin to, without disturbing what else the machine does.

        :param where: its directory is the checkout.
        """
        for name in names:
            image = _image(name, tag)
            if image not in self._built.keys() | self._loaded:
                build = f"nice -n 19 e2e/cluster build {image} images/{name}/Dockerfile"
                self._built[image] = self._builder.submit(where.run, build, BUILD_SECONDS)

    def build_all(self, cluster: Cluster, earlier: Earlier | None) -> None:
        """Begin to build whatever any walk needs."""
        if earlier is not None:
            self.build(earlier.cluster, earlier.images, earlier.tag)
        self.build(cluster, ("broker", "operator", "verifier", "etcd", "bookkeeper"))

    def load(self, where: Cluster, names: Iterable[str], tag: str = TAG) -> None:
        """Pods can use these when it returns. A build that failed is raised here."""
        names = list(names)
        self.build(where, names, tag)
        for image in [_image(name, tag) for name in names]:
            if image not in self._loaded:
                self._built[image].result()
                where.run(f"e2e/cluster load {image}")
                self._loaded.add(image)


def _image(name: str, tag: str) -> str:
    return f"meridian-{name}:{tag}"
