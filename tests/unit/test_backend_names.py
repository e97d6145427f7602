"""What `backend.name` may be."""

from __future__ import annotations

import pytest

from engine.core.plan.environment import backends_in


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("gloo", ("gloo",)),
        ("auto", ("auto",)),
        ("cpu:gloo,cuda:nccl", ("gloo", "nccl")),
        ("cuda:nccl,cpu:gloo", ("nccl", "gloo")),
        ("cpu:mpi", ("mpi",)),
    ],
)
def test_a_name_is_made_of_backends(name: str, backends: tuple[str, ...]):
    assert backends_in(name) == backends


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is neither a backend"),
        ("GLOO", "is neither a backend"),
        ("tpu:xla", "is neither a backend"),
        ("cpu:gloo,", "is neither a backend"),
        ("cpu:gloo, cuda:nccl", "is neither a backend"),
        ("gloo\n", "is neither a backend"),
        ("gloo,nccl", "not the device of each"),
        ("gloo,cuda:nccl", "not the device of each"),
        ("cpu:gloo,cpu:mpi", "two backends for one device"),
        ("cpu:auto", "must be the whole name"),
        ("cpu:gloo,cuda:auto", "must be the whole name"),
    ],
)
def test_a_name_that_makes_no_sense_says_why(name: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        backends_in(name)
