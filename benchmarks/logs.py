"""How long the app's log takes with files that are large: to open a gigabyte, and to search five million lines.

Run as `python benchmarks/logs.py`. Prints seconds: until the end of a gigabyte is on the screen, until its first lines are; for several
expressions, until the nearest match is known and until all are counted; and the longest that the app's event loop was held up
meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.app import App, ComposeResult

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tui.data.log.file import LogFile  # noqa: E402 - found beside this folder, installed or not
from tui.theme import CSS  # noqa: E402
from tui.widgets.log_view import LogView  # noqa: E402

LINES = 5_000_000
GIGABYTE = 1 << 30
EXPRESSIONS = {
    "the last line": "step 4999999 ",
    "the first line": "step 0 ",
    "a number": r"loss 0\.99\d+ .*77$",
    "two words, neither there": "ERROR|Traceback",
    "a word in every line": "step",
}


class LogApp(App[None]):
    """The log and nothing else."""

    CSS_PATH = CSS

    def __init__(self) -> None:
        super().__init__()
        self.view = LogView()

    def compose(self) -> ComposeResult:
        yield self.view


def write(path: Path, lines: int, size: int) -> None:
    """Writes so many lines, or lines up to a size."""
    with path.open("wb") as file:
        for begin in range(0, lines, 10_000):
            numbers = range(begin, min(lines, begin + 10_000))
            file.write(
                b"".join(
                    b"08:00:%02d INFO step %d loss %.4f tok/s %d\n" % (n % 60, n, n % 10_000 / 10_000, n % 9_000)
                    for n in numbers
                )
            )
            if file.tell() > size:
                return


async def until(condition: Callable[[], bool]) -> tuple[float, float]:
    """Seconds until something is so, and the longest pause of the event loop meanwhile."""
    begin = last = time.perf_counter()
    longest = 0.0
    while not condition():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return time.perf_counter() - begin, longest


def shows(view: LogView, text: str) -> bool:
    """Whether a text is on the screen."""
    return any(text in view.render_line(y).text for y in range(view.size.height))


async def measure(large: Path, many: Path) -> None:
    """Prints everything."""
    app = LogApp()
    view = app.view
    async with app.run_test(size=(120, 40)):
        view.show(LogFile(large))
        print(f"open 1 GB at its end              {(await until(lambda: shows(view, 'step')))[0]:7.3f} s")
        view.action_first()
        print(f"go to its beginning               {(await until(lambda: shows(view, 'step 0 ')))[0]:7.3f} s")
        view.show(LogFile(many))
        await until(lambda: shows(view, "step"))
        print(f"search {LINES:,} lines          nearest    all    loop held up")
        for name, expression in EXPRESSIONS.items():
            view.search(None)
            view.action_last()
            view.search(expression)
            search = view.finder._search
            assert search is not None
            begin = time.perf_counter()
            _, held = await until(lambda search=search: search.found.asked > 0)  # type: ignore[misc]
            first = time.perf_counter() - begin
            _, later = await until(lambda search=search: search.found.whole)  # type: ignore[misc]
            print(f"    {name:<28} {first:7.3f} {time.perf_counter() - begin:7.3f} {max(held, later):7.3f} s")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        large, many = Path(folder, "large"), Path(folder, "many")
        write(large, 1 << 62, GIGABYTE)
        write(many, LINES, 1 << 62)
        asyncio.run(measure(large, many))


if __name__ == "__main__":
    main()
