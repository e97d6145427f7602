"""accelerate inside `rankdeck.elastic`: a rank that is lost rejoins, and the other one keeps its process and its state."""

import os
import signal
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

import rankdeck

STEPS = 60


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2 * step + rank)
    points = torch.randn(16, 32, generator=generator)
    return points, (points.norm(dim=1) > 5.6).long()


def main() -> None:
    fatal = int(sys.argv[1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    state = rankdeck.elastic.State(step=0, model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3))

    @rankdeck.elastic.run(state)
    def train() -> float:
        AcceleratorState._reset_state(reset_partial_state=True)  # it keeps the process group of the generation before
        accelerator = Accelerator(cpu=True)
        wrapped = accelerator.prepare(state.model)
        loss = torch.zeros(())
        while state.step < STEPS:
            if state.step == fatal and accelerator.process_index == 1 and os.environ["RANKDECK_GENERATION"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            points, label = batch(state.step, accelerator.process_index)
            loss = nn.functional.cross_entropy(wrapped(points), label)
            accelerator.backward(loss)
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            total = accelerator.reduce(loss.detach(), "mean").item()
            rankdeck.log(step=state.step, steps=STEPS, loss=total)
        return total

    print(f"final loss {train():.8f}")


if __name__ == "__main__":
    main()
