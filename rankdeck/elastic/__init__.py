"""Elastic training: when a rank dies, the other ranks keep their processes, a new process replaces it, and no step is lost.

    state = rankdeck.elastic.State(model=model, optimizer=optimizer, step=0)

    @rankdeck.elastic.run(state)
    def train():
        ddp = DistributedDataParallel(state.model)
        while state.step < steps:
            ...
            state.step += 1

    train()

The script calls `train` once on every rank. rankdeck calls the function again in each new *generation*: a process group of the surviving
and the new ranks. The function must create everything that depends on the process group, above all the DDP wrapper. Before each call,
the rank with the most finished steps gives its state to the others.

Outside rankdeck (plain `python`, torchrun, mpirun), rankdeck makes the process group as `rankdeck.init_process_group` does, and calls the
function once. The interface resembles Horovod's elastic training.
"""

from rankdeck.elastic._leaving import PeerLostError
from rankdeck.elastic._session import run
from rankdeck.elastic._state import State, StateError
from rankdeck.elastic._streams import DEVICES

__all__ = ["DEVICES", "PeerLostError", "State", "StateError", "run"]
