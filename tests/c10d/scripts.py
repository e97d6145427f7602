"""Scripts of ranks that hold for every backend of ours. `tests/c10d/jobs.py` has the names that they use."""

from tests.support import entries

MODELS_TRAIN = entries("c10d/scripts", "models_train")

ASYNC_OPERATIONS = entries("c10d/scripts", "async_operations")

A_TIMEOUT = entries("c10d/scripts", "a_timeout")

SYNCHRONOUS_TIMEOUTS = entries("c10d/scripts", "synchronous_timeouts")

DIFFERENT_CALLS = entries("c10d/scripts", "different_calls")

MEMBERS_DO_NOT_COME = entries("c10d/scripts", "members_do_not_come")

ENDS_WITHOUT_DESTROYING = entries("c10d/scripts", "ends_without_destroying")

CALLBACKS = entries("c10d/scripts", "callbacks")
SAID_BY_CALLBACKS = [str([32.0 for _ in range(3)]), "[8.0, 8.0]"]  # what each of two ranks says first in CALLBACKS

HOOKS = entries("c10d/scripts", "hooks")
"""The hooks of torch that work over gloo. Left out: those that fail in torch 2.13 over every backend but nccl (`quantization_hooks`, which
expect nccl's shape of results, and `batched_powerSGD_hook`, which its own assertion stops), and those built into C++.
"""

TOOLS_SEE = entries("c10d/scripts", "tools_see")

SHORT_FORMS = entries("c10d/scripts", "short_forms")

SIGNATURES = entries("c10d/scripts", "signatures")
