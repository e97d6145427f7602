"""Keeps training when a rank dies: the survivors stay, a new process takes the dead rank's place, and no step is lost.

    state = rankdeck.elastic.State(model=model, optimizer=optimizer, step=0)

    @rankdeck.elastic.run(state)
    def train():
        ddp = DistributedDataParallel(state.model)
        while state.step < steps:
            ...
            state.step += 1

    train()

`train` is entered once on every rank, and again whenever the ranks have found together anew: a *generation*. Whatever holds on
to the process group (the DDP wrapper above all) has to be made inside it. Between two entries the ranks agree on who has
finished the most steps, and that rank's state is given to the others.

Outside rankdeck (plain `python`, torchrun), and under mpirun, the function is simply called, after the process group is made as
`rankdeck.init_process_group` makes it. The shape of this interface is the one that Horovod's elastic training made known.
"""

from __future__ import annotations

from rankdeck.elastic._leaving import PeerLostError
from rankdeck.elastic._session import run
from rankdeck.elastic._state import State

__all__ = ["PeerLostError", "State", "run"]
