# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about the bookies of a region that brokers share:

bookie us k1 crash              its machine loses power: what it had not synced is lost
bookie us k1 start              a new process starts, with what is on its disk
bookie us k1 hang               SIGSTOP
bookie us k1 resume             SIGCONT
bookie us k1 busy 3             it refuses this many entries because it is overloaded
bookie us k1 broken             its disk refuses entries
bookie us k1 mended             its disk accepts entries again
bookie us k1 slow 50            a sync takes 50 ms longer
bookie us k1 cut b2             b2 alone cannot reach it
bookie us k1 join b2            b2 can reach it again
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.bookie_volume import BookieVolume
from simulation.brokers_region import BrokersRegion
from simulation.teller import StoryError, Teller


class BookieSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_bookie(self, region: str, name: str, what: str, more: str = "") -> None:
        home = self.world.regions[region]
        if not isinstance(home, BrokersRegion) or not isinstance(home.volume, BookieVolume):
            raise StoryError(f"{region} has no bookies: begin with: brokers 2, and bookies 4")
        self.world.trouble()
        volume, loop, bookie = home.volume, self.world.loop, home.volume.bookies[name]
        steps: dict[str, Callable[[], object]] = {
            "crash": lambda: volume.crash(name, self.world.weather.random),
            "start": lambda: volume.start_one(name),
            "hang": lambda: loop.suspend(bookie.run),
            "resume": lambda: loop.resume(bookie.run),
            "busy": lambda: setattr(bookie, "busy", int(more)),
            "broken": lambda: setattr(bookie, "is_broken", True),
            "mended": lambda: setattr(bookie, "is_broken", False),
            "slow": lambda: setattr(bookie, "slow_us", int(more) * 1000),
            "cut": lambda: volume.part(more, name, home.running(more)),
            "join": lambda: volume.join(more, name),
        }
        steps[what]()
