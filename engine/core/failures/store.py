"""Why the store of an attempt ended, in words."""

from typing import NamedTuple

from engine.core.run.state import status_words
from engine.core.terminal_text import visible


class StoreWords(NamedTuple):
    """How a store ended, with its last line; and the next step."""

    reason: str
    advice: str


def store_words(reason: str, status: int | None, output: str, log: str) -> StoreWords:
    """Returns how a store ended. `status`: the exit code of its process, or minus the number of a signal; None: unknown."""
    lines = [visible(line).strip() for line in output.splitlines() if line.strip()]
    words = reason if status is None else f"{reason} with {status_words(status)}"
    if lines and status:
        words += f": {lines[-1]}"
    advice = f"`rankdeck check` tries the Python and the torch of the ranks; the store's output is in {log}"
    return StoreWords(words, advice if status else "")
