"""Scripts of ranks that hold for every backend of ours. `tests/c10d/jobs.py` has the names that they use."""

from __future__ import annotations

from tests.support import entries

MODELS_TRAIN = entries("c10d/scripts", "models_train")

ASYNC_OPERATIONS = entries("c10d/scripts", "async_operations")

REFUSALS = entries("c10d/scripts", "refusals")

A_TIMEOUT = entries("c10d/scripts", "a_timeout")

SYNCHRONOUS_TIMEOUTS = entries("c10d/scripts", "synchronous_timeouts")

DIFFERENT_CALLS = entries("c10d/scripts", "different_calls")

MEMBERS_DO_NOT_COME = entries("c10d/scripts", "members_do_not_come")

ENDS_WITHOUT_DESTROYING = entries("c10d/scripts", "ends_without_destroying")

REFUSED_WITH = (
    "can be moved, but not reduced",
    "it supports SUM",
    "can't reduce torch.float32 by BAND",
    "to_dense()",
    "on meta",
    "5 elements",
)
"""What the first lines of REFUSALS have in them."""

CALLBACKS = entries("c10d/scripts", "callbacks")

SAID_BY_CALLBACKS = [str([32.0 for _ in range(3)]), "[8.0, 8.0]"]
"""What each of two ranks says first in CALLBACKS."""

HOOKS = entries("c10d/scripts", "hooks")
"""The hooks of torch that work over gloo. Left out: those that fail in torch 2.13 over every backend but nccl (`quantization_hooks`, which
expect nccl's shape of results, and `batched_powerSGD_hook`, which its own assertion stops), and those built into C++.
"""

WRONG_CALLS = entries("c10d/scripts", "wrong_calls")
"""Calls that are errors: in the arguments, which a rank sees by itself, or of ranks that do not fit each other."""

SAID_OF_WRONG_CALLS = (
    "alive 2.0",
    "even: DistBackendError: .*a rank sends 1 elements to each rank, and another one 2",
    "cross: DistBackendError: .*rank 0 sends another number of elements to rank 1",
    "mixed: DistBackendError: .*rank 0 sends another number of elements to rank [01]",
    "lists: DistBackendError: .*rank 0 sends another number of elements to rank 1",
    "counts: DistBackendError: .*rank 0: all_reduce.4 x .*; rank 1: all_reduce.5 x ",
    "dtypes: DistBackendError: .*rank 0: .*float64.*; rank 1: .*float32",
    "roots: DistBackendError: .*rank 0: .*from rank 0.*; rank 1: .*from rank 1",
    "order: DistBackendError: .*rank 0: all_reduce.*; rank 1: barrier",
    "alive 2.0",
    "short: DistBackendError: .*8 bytes came for a tensor of 16",
)
"""What rank 1 says in WRONG_CALLS; rank 0 says all but the last."""

SHORT_FORMS = entries("c10d/scripts", "short_forms")
