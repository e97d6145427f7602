"""How a rank takes a generation apart that has lost a rank."""

from __future__ import annotations

import re
import traceback

_PEER_TROUBLE = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused|was)|socket|broken pipe|timed? ?out|abort|unhandled system error"
    r"|remote process|peer|store|process group|communicator",
    re.IGNORECASE,
)


class PeerLostError(RuntimeError):
    """Another rank is gone, and this generation with it."""


def may_be_peers_fault(error: BaseException) -> bool:
    """Whether the message of an error is one that a lost peer causes. Any other error is the script's own."""
    return bool(_PEER_TROUBLE.search(str(error)))


def words_of(error: BaseException) -> str:
    """The first sentence of an error, without the place in torch's sources that it begins with."""
    text = re.sub(r"^\[[^\]]*\] *", "", str(error).strip()).split("\n")[0]
    return text.split(". ")[0][:200] or type(error).__name__


def let_go(error: BaseException) -> None:
    """Empties the frames that an exception has come through: they hold the DDP wrapper, and that holds the group."""
    seen: BaseException | None = error
    while seen is not None:
        if seen.__traceback__ is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
        seen = seen.__context__ or seen.__cause__


def abort_group() -> None:
    """Ends the process group without asking the peers, also one that was only half made."""
    import torch.distributed as dist

    if dist.is_initialized():
        try:
            dist.distributed_c10d._abort_process_group()
        except Exception:  # noqa: BLE001 - a backend that can't abort can still be destroyed
            dist.destroy_process_group()
    # torch names a group by this count, and ranks whose names differ never meet. A group that failed to form leaves it at 1.
    dist.distributed_c10d._world.group_count = 0
