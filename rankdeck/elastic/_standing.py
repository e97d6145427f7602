"""What the threads of a rank know of where its training is."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Standing:
    """Written by the main thread only."""

    rank: int
    world: int
    generation: int
    attempt: int = 0
    """How many attempts to form this generation have failed."""
    fresh: bool = True
    """Whether this process has trained in no generation yet."""
    inside: bool = False
    """Whether the main thread is where it may wait for a peer."""
    leaving: bool = False
    """Whether it takes a group apart, which waits for all that the group still does."""
