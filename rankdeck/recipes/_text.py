"""The text that the gpt recipe learns, as numbers, and which blocks of it each rank sees. `as_you_like_it.txt` is the play "As You Like
It" by William Shakespeare, which is in the public domain."""

from dataclasses import dataclass
from pathlib import Path

import torch

PLAY = Path(__file__).with_name("as_you_like_it.txt")


@dataclass(frozen=True)
class Text:
    """A text of which the last tenth is held out. `characters` has every character once; a character's token is its index in there.
    `train` and `held_out` have shape (length,), int64."""

    characters: str
    train: torch.Tensor
    held_out: torch.Tensor

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.characters[token] for token in tokens)


def read_text(path: Path = PLAY) -> Text:
    text = path.read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    token = {character: number for number, character in enumerate(characters)}
    tokens = torch.tensor([token[character] for character in text])
    cut = len(tokens) * 9 // 10
    return Text(characters=characters, train=tokens[:cut], held_out=tokens[cut:])


def blocks_at(tokens: torch.Tensor, starts: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, both of shape (len(starts), block): a target is the character after its input."""
    windows = tokens[starts[:, None] + torch.arange(block + 1)]
    return windows[:, :-1], windows[:, 1:]


class Shard:
    """A rank's share of the blocks, in the manner of torch's `DistributedSampler`.

    In each epoch the text is cut into blocks, at another offset every time, and these are shuffled by a seed that all ranks
    share; of each global batch rank r takes every world-size-th, from the r-th. The next sample follows from the number of
    samples that all ranks have seen, so a resumed run goes on with the sample after its checkpoint. As in torch, an epoch's
    last batch is filled up from the epoch's beginning.

    Args:
        length: length of the text, in characters; at least 2 * block.
    """

    def __init__(self, *, length: int, block: int, batch: int, seed: int, rank: int, world: int) -> None:
        self._blocks = length // block - 1
        self._block = block
        self._seed = seed
        self._picks = torch.arange(rank, batch * world, world)
        self._epoch = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def starts(self, seen: int) -> torch.Tensor:
        """Where the blocks of this rank's next batch start, shape (batch,), after the samples that all ranks have seen."""
        epoch, offset = divmod(seen, self._blocks)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            shift = torch.randint(self._block, (1,), generator=generator)
            self._starts = shift + self._block * torch.randperm(self._blocks, generator=generator)
            self._epoch = epoch
        return self._starts[(offset + self._picks) % self._blocks]
