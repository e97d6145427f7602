"""As a program, `python warm_template.py FD`: the template of the node agent, for ranks of tests.

It imports a few modules more. No library has an end of its own, unless the environment has RANKDECK_TESTS_TORCH=whole.
"""

import os

from engine.node import template

template.WARM += ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.testing")  # type: ignore[assignment]


def main() -> None:
    """Serves as the template; in each forked process, runs a rank's program."""
    if os.environ.get("RANKDECK_TESTS_TORCH") != "whole":
        template.rank_end.HARMLESS += ("",)  # type: ignore[attr-defined]
    template.main()


if __name__ == "__main__":
    main()
