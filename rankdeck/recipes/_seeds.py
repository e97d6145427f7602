"""Seeds for the random draws of a recipe, one for each purpose, epoch or step. `seed + step` would give `--seed 1` the batches of `--seed
0`, one step later. With a hash, neighbouring numbers give unrelated seeds."""

import hashlib


def seed_at(seed: int, *numbers: int) -> int:
    """Returns the seed of one draw, from 0 to 2**63 - 1, the same on every machine. `numbers`: the numbers that no other draw has, such
    as epoch, step or rank."""
    digest = hashlib.sha256(repr((seed, *numbers)).encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
