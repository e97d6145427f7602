"""As a program, `python warm_template.py FD`: the template of the node agent, for ranks of tests.

It imports a few modules more. And its ranks end at once; RANKDECK_TESTS_TORCH=whole in the environment leaves them their end.
"""

from __future__ import annotations

import os

from engine.node import template
from tests.light.quick_end import QuickEnd

template.WARM += ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.testing")  # type: ignore[assignment]


def main() -> None:
    """Serves as the template; in each forked process, runs a rank's program."""
    if os.environ.get("RANKDECK_TESTS_TORCH") != "whole":
        QuickEnd()
    template.main()


if __name__ == "__main__":
    main()
