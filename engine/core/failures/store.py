"""Why the store of an attempt ended, in words."""

from typing import NamedTuple

from engine.core.run.state import status_words
from engine.core.terminal_text import visible

LAST_LINES = 3  # lines of a store's output that the reason shows


class StoreWords(NamedTuple):
    """How a store ended, with its last lines; and the next step."""

    reason: str
    advice: str


def store_words(reason: str, status: int | None, output: str, log: str) -> StoreWords:
    """Returns how a store ended. `status`: the exit code of its process, or minus the number of a signal; None: unknown."""
    lines = [visible(line).strip() for line in output.splitlines() if line.strip()]
    words = reason if status is None else f"{reason} with {status_words(status)}"
    if lines and status:
        words += f": {' | '.join(lines[-LAST_LINES:])}"
    is_killed = status is not None and status < 0
    what = (
        "see what kills processes there"
        if is_killed
        else "`rankdeck check` tries the Python and the torch of the ranks"
    )
    return StoreWords(words, f"{what}; the store's output is in {log}" if status else "")
