"""transformers' Trainer: a tiny GPT-2 with random weights learns sequences of numbers."""

import os
import signal
import sys
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    layers: int = field(default=2, metadata={"help": "Blocks of the model."})
    width: int = field(default=32, metadata={"help": "Size of the embeddings."})
    fatal_step: int = field(default=0, metadata={"help": "Step at which the last rank of the first attempt is killed."})
    silent: bool = field(default=False, metadata={"help": "Print nothing while it trains."})


class Killer(TrainerCallback):
    """The machine runs out of memory, once."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if is_first and state.global_step == self.step and args.process_index == args.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Counting(Dataset):
    """Sequences that count on from a random number, in random steps."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, 64, (size, 1), generator=generator)
        stride = torch.randint(1, 4, (size, 1), generator=generator)
        self.tokens = (first + stride * torch.arange(24)) % 64

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=model_args.width, n_layer=model_args.layers, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        train_dataset=Counting(512, 0),
        eval_dataset=Counting(64, 1),
        callbacks=[Killer(model_args.fatal_step)],
    )
    if model_args.silent:
        trainer.remove_callback(ProgressCallback)
        trainer.remove_callback(PrinterCallback)
    checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    trainer.train(resume_from_checkpoint=checkpoint)
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"final eval_loss {metrics['eval_loss']:.6f}")
    # torch 2.13: a thread of gloo needs the interpreter to release the tensors of the last all_gather. If the group or the interpreter
    # ends at this moment, the process hangs or aborts, under torchrun too.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
