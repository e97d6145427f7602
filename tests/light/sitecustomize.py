"""Python runs this at its start where `tests/light` is on PYTHONPATH: the store of a run whose script does without torch does too.

Importing torch takes two seconds of processor time, and most runs of tests have ranks that only print. Their store is asked
for nothing. Only the process of `store_host.py` is affected, and only where the run's script is a file that mentions neither
torch nor rankdeck.elastic; any doubt means the real torch.
"""

import sys


def _needs_torch(program: str) -> bool:
    """Whether ranks may use the store. `program`: the path of store_host.py, in a library in the run's folder."""
    import json
    from pathlib import Path

    try:
        plan = json.loads(Path(program.partition("/nodes/")[0], "plan.json").read_bytes())
        text = Path(plan["program"]["target"]).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError):
        return True
    return plan["program"]["kind"] != "script" or plan["warm"] or any(word in text for word in ("torch", "elastic"))


for _word in sys.orig_argv[1:3]:
    if _word.endswith("/rankdeck/store_host.py") and "/nodes/" in _word and not _needs_torch(_word):
        sys.path.insert(0, f"{__file__.rpartition('/')[0]}/store")
