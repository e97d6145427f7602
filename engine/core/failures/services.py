"""Why a process that ranks need has ended, in words: a store, an agent or a template."""

from typing import NamedTuple

from engine.core.run.state import status_words
from engine.core.terminal_text import visible
from engine.core.words import limited

LAST_LINES = 3  # last lines of the output that the reason shows
MAX_LINE = 200  # characters of each
MAX_PATH = 1000  # characters of a path
MARKERS = " \t~^"  # a line below a line of a traceback


class Ended(NamedTuple):
    """How a process ended, with its last lines; and the next step."""

    reason: str
    advice: str


def ended_words(reason: str, status: int | None, output: str, log: str) -> Ended:
    """Returns how a process ended. `status`: its exit code, or minus the number of a signal; None: unknown. `output`: its end; like `log`, not
    trusted."""
    said = [line for line in output.splitlines() if line.strip(MARKERS)]
    lines = [limited(visible(line).strip(), MAX_LINE) for line in said[-LAST_LINES:]]
    words = reason if status is None else f"{reason} with {status_words(status)}"
    if status == 0 or (status is None and not lines):
        return Ended(words, "")
    if lines:
        words += f": {' | '.join(lines)}"
    what = "`rankdeck check` tries the Python and the torch of the ranks"
    if status is not None and status < 0:
        what = "see what kills processes there"
    return Ended(words, f"{what}; its output is in {limited(visible(log), MAX_PATH)}")
