"""The recipe of the profile quickstart, small and unhurried: tests of runs look at processes and screens, not at how a GPT learns."""

from typing import Any

from tests.conftest import WriteScript
from tests.support import ROOT, entries

SMALL = ("--batch", "2", "--block", "16", "--layers", "1", "--heads", "2", "--width", "32")
"""Arguments for a model whose steps take milliseconds."""

UNHURRIED = entries("quickstart", "unhurried")  # runs a recipe whose steps wait instead of computing


def unhurried(write_script: WriteScript, *words: str) -> dict[str, Any]:
    """The table `recipe` of a profile that trains so. `words`: further arguments of the recipe `gpt`."""
    script = write_script("unhurried.py", UNHURRIED)
    args = [str(ROOT / "rankdeck/recipes/gpt.py"), *SMALL, "--eval-every", "0", *words]
    return {"script": str(script), "args": args}
