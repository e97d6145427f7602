"""As a program, `python warm_template.py FD`: the template of the node agent, with a few modules more that ranks of tests import."""

from engine.node import template

template.WARM += ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.testing")  # type: ignore[assignment]

if __name__ == "__main__":
    template.main()
