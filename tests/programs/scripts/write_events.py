"""Writes an event file as programs do: scalars of several names, in both formats, among texts, histograms and pictures."""

import sys

import numpy as np
from torch.utils.tensorboard import SummaryWriter

with SummaryWriter(sys.argv[1]) as writer:
    writer.add_text("config", "lr 0.1")
    for step in range(1, 6):
        writer.add_scalar("train/loss", 2.0 / step, step, walltime=1000.0 + step)
        writer.add_scalar("accuracy", step / 8, step, walltime=1000.0 + step, new_style=True)
        writer.add_histogram("weights", np.arange(3.0), step)
    writer.add_image("picture", np.zeros((3, 8, 8)), 5)
    writer.add_scalar("train/loss", float("nan"), 6, walltime=1006.0)
    writer.add_scalar("val/loss", 0.5, -1, walltime=1007.0)
