# SPDX-License-Identifier: Apache-2.0
"""The images of pods, each built and loaded once, however many walks need it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from clusters import Cluster
from earlier import Earlier

TAG: Final = "0.1.0"
"""Tag of this version's images."""
BUILD_SECONDS: Final = 3600
"""At low priority a build may last as long as the first walk."""


class Images:
    """Builds one image at a time, beside the tests. A context manager, which waits for builds in progress."""

    def __init__(self) -> None:
        self._builder = ThreadPoolExecutor(1)
        self._built: dict[str, Future[str]] = {}
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._builder.shutdown(cancel_futures=True)

    def are_loaded(self, names: Iterable[str]) -> None:
        """Record that others have built and loaded these."""
        self._loaded |= {_image(name, TAG) for name in names}

    def build(self, where: Cluster, names: Iterable[str], tag: str = TAG) -> None:
        """Begin to build, at low priority.

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
        """Return once pods can use these. Raises the failure of a build."""
        names = list(names)
        self.build(where, names, tag)
        for image in [_image(name, tag) for name in names]:
            if image not in self._loaded:
                self._built[image].result()
                where.run(f"e2e/cluster load {image}")
                self._loaded.add(image)


def _image(name: str, tag: str) -> str:
    return f"meridian-{name}:{tag}"
