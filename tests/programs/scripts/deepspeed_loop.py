"""DeepSpeed's engine, ZeRO 1: a small regression with noise. It starts again from its last checkpoint."""

import argparse
import os
import signal

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops
import torch
from torch import nn

# 0.19.8: its collectives in shared memory are compiled at their first use, which takes a minute of two cores; torch's gloo does the same.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 5,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "wall_clock_breakdown": False,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--fatal_step", type=int, default=0, help="step at which rank 1 of the first attempt is killed")
    args = parser.parse_args()

    deepspeed.utils.set_log_level_from_string("info")
    deepspeed.init_distributed(dist_backend="gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    engine.load_checkpoint(args.output_dir)  # a warning, if there is none
    loss = torch.zeros(())
    while engine.global_steps < args.steps:
        step = engine.global_steps + 1
        points = torch.rand(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = nn.functional.mse_loss(engine(points), points.mean(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        if step % 5 == 0 and rank == 0:
            print(f"step: {step}/{args.steps} loss: {loss.item():.6f}", flush=True)
        if step % 20 == 0:
            engine.save_checkpoint(args.output_dir)
        if step == args.fatal_step and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        print(f"final {loss.item():.10f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
