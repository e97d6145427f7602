"""accelerate in the manner of its examples: a bar over all steps, and a line for each epoch."""

import argparse
import os
import signal

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


def rings(count, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 32, generator=generator)
    return TensorDataset(points, (points.norm(dim=1) > 5.6).long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--fatal_step", type=int, default=0)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    set_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = DataLoader(rings(1920, 0), batch_size=16, shuffle=True)
    held_out = DataLoader(rings(512, 1), batch_size=64)
    model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)

    steps = args.num_train_epochs * len(train) // args.gradient_accumulation_steps
    progress = tqdm(range(steps), disable=not accelerator.is_local_main_process)
    first = 0
    if os.path.isdir("checkpoints"):
        first = 1 + max(int(name) for name in os.listdir("checkpoints") if name.isdecimal())
        accelerator.load_state(f"checkpoints/{first - 1}")
        progress.update(first * steps // args.num_train_epochs)
    accuracy = 0.0
    for epoch in range(first, args.num_train_epochs):
        model.train()
        train.set_epoch(epoch)
        total = 0.0
        for points, label in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(points), label)
                total += loss.item()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress.update(1)
                progress.set_postfix(loss=loss.item())
                if is_first and progress.n == args.fatal_step and accelerator.process_index == 0:
                    os.kill(os.getpid(), signal.SIGKILL)  # the machine runs out of memory, once
        model.eval()
        right = count = 0
        for points, label in held_out:
            with torch.no_grad():
                guess = model(points).argmax(1)
            guess, label = accelerator.gather_for_metrics((guess, label))
            right += int((guess == label).sum())
            count += len(label)
        accuracy = right / count
        accelerator.print(f"epoch {epoch}: {{'accuracy': {accuracy:.4f}, 'train_loss': {total / len(train):.4f}}}")
        accelerator.save_state(f"checkpoints/{epoch}.new")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            os.rename(f"checkpoints/{epoch}.new", f"checkpoints/{epoch}")
    accelerator.print(f"final accuracy {accuracy:.6f}, train_loss {total / len(train):.8f}")
    # Where DDP has the last reference to gloo's process group, torch 2.13 waits for a thread that waits for the GIL.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


if __name__ == "__main__":
    main()
