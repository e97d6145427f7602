"""A LightningModule that learns to tell two clouds of points apart, with validation after each epoch."""

import argparse
import os
import signal

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def clouds(count, seed):
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 2
    points = torch.randn(count, 16, generator=generator) + label[:, None] * 0.7
    return TensorDataset(points, label)


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, batch_idx):
        points, label = batch
        loss = nn.functional.cross_entropy(self.net(points), label)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        points, label = batch
        logits = self.net(points)
        self.log("val_loss", nn.functional.cross_entropy(logits, label), prog_bar=True, sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == label).float().mean(), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Killer(L.Callback):
    """The machine runs out of memory, once."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *args):
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if is_first and trainer.global_step == self.step and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--rich", action="store_true")
    parser.add_argument("--fatal_step", type=int, default=0)
    args = parser.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=TensorBoardLogger(".") if args.rich else False,
        log_every_n_steps=5,
        callbacks=[
            RichProgressBar() if args.rich else TQDMProgressBar(),
            ModelCheckpoint("checkpoints", save_last=True),
            Killer(args.fatal_step),
        ],
    )
    trainer.fit(
        Classifier(args.lr),
        DataLoader(clouds(640, 0), batch_size=16, shuffle=True),
        DataLoader(clouds(128, 1), batch_size=32),
        ckpt_path="last",
    )
    if trainer.is_global_zero:
        print(f"final val_loss {trainer.callback_metrics['val_loss']:.6f}")
