"""Handwritten digits that the recipes learn: 1,797 images of 8 by 8 pixels. The first lines of `digits.txt` name their source and
licence. Its last images are held out."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

from rankdeck.recipes._seeds import seed_at

Sample = tuple[torch.Tensor, torch.Tensor]  # an image and its label

DIGITS = Path(__file__).with_name("digits.txt")

HELD_OUT = 397  # a prime number, so that no number of ranks shares the held-out images evenly


class Digits(NamedTuple):
    """Some images, and their digits."""

    images: torch.Tensor  # shape (count, 1, 8, 8), float32, from 0 (white) to 1
    labels: torch.Tensor  # shape (count,), int64, from 0 to 9


def read_digits() -> tuple[Digits, Digits]:
    """Returns the images to learn from, and those that are held out."""
    lines = [line for line in DIGITS.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    # A line is a label and 64 letters, from "a" for white to "q" for the darkest of 17 greys.
    codes = torch.frombuffer(bytearray("".join(lines), "ascii"), dtype=torch.uint8).view(-1, 65)
    labels = codes[:, 0].to(torch.int64) - ord("0")
    images = (codes[:, 1:].float() - ord("a")).view(-1, 1, 8, 8) / 16
    return (Digits(images[:-HELD_OUT], labels[:-HELD_OUT]), Digits(images[-HELD_OUT:], labels[-HELD_OUT:]))


class Moved(Dataset[Sample]):
    """Images that are moved by up to one pixel, in each epoch another way. `seed`: decides, with `epoch` and the number of an image,
    which way it is moved."""

    def __init__(self, digits: Digits, seed: int) -> None:
        self._padded, self._labels, self._seed, self.epoch = F.pad(digits.images, (1, 1, 1, 1)), digits.labels, seed, 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        right, down = divmod(seed_at(self._seed, self.epoch, index) % 9, 3)
        return self._padded[index, :, down : down + 8, right : right + 8], self._labels[index]
