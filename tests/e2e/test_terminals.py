"""The app in terminals of several names, and in a tmux that is detached and attached again."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.support import COMMAND, Deck, entries
from tests.tmux import Terminal
from tests.tui.terminal import Pty

if shutil.which("tmux") is None:
    pytest.skip("needs tmux, to drive a real terminal", allow_module_level=True)

pytestmark = pytest.mark.slow

STEPS = entries("e2e/terminals", "steps")


@pytest.fixture
def run(rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile) -> str:
    """Two ranks that train for ever."""
    return rankdeck.launch(write_profile(write_script("steps.py", STEPS), ranks=2, name="steps"))


@pytest.fixture(params=["", "screen", "screen-256color"], ids=["tmux's own", "screen", "screen-256color"])
def inside(request: pytest.FixtureRequest, run: str, home: Path) -> Iterator[Terminal]:
    """The app in tmux, with a name of the terminal inside."""
    words = [f"{name}={os.environ[name]}" for name in ("RANKDECK_HOME", "XDG_RUNTIME_DIR")]
    words += [f"TERM={request.param}"] if request.param else []
    terminal = Terminal(80, 24, shlex.join(["env", *words, *COMMAND, "attach", run]))
    yield terminal
    terminal.close()


def step_in(text: str) -> int:
    """The step in the title."""
    found = re.search(r"step +(\d+)", text.splitlines()[0])
    return 0 if found is None else int(found[1])


def is_whole(text: str, columns: int) -> bool:
    """Whether the run's screen fills a terminal: title, frames from edge to edge, and the keys."""
    first, *others = text.splitlines()
    frames = [line for line in others if line.startswith(("╭", "│", "╰"))]
    return (
        "steps  ● running" in first
        and sum("● running" in line for line in frames) == 2
        and all(len(line) == columns and line.endswith(("╮", "│", "╯")) for line in frames)
        and len(frames) == len(others) - 2  # the second line of the title, and the keys
        and "q detach" in others[-1]
    )


@pytest.mark.parametrize("term", ["screen", "screen-256color"])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_the_app_works_where_term_is_screen(run: str, term: str, columns: int, lines: int) -> None:
    with closing(Pty(*COMMAND, "attach", run, columns=columns, lines=lines, term=term)) as shown:
        shown.wait(lambda: is_whole(shown.text, columns), "the whole screen")
        shown.send(b"\x1bOB\x1b[B")  # down, as terminals of this name send it, and as most do
        shown.wait_seen("▸   1" if columns == 80 else "▸")
        shown.send(b"2")
        shown.wait_seen("─ Chart ")
        shown.send(b"\x1bOP")  # F1
        shown.wait_seen("─ Help ")
        shown.send(b"\x1b")
        shown.wait(lambda: is_whole(shown.text, columns), "the run")
        shown.send(b"q")
        shown.wait(lambda: not shown.child.isalive(), "the end")
        shown.read()
        assert b"\x1b[?1049l" in shown.output
        assert f"rankdeck attach {run}".encode() in shown.output


def test_the_screen_is_whole_after_tmux_was_detached_and_attached_at_another_size(inside: Terminal) -> None:
    inside.hide_status()
    with closing(Pty(*inside.attach, columns=80, lines=24, term="screen-256color")) as before:
        before.wait(lambda: is_whole(before.text, 80) and step_in(before.text) > 0, "the whole screen")
        step = step_in(before.text)
        inside.detach()
        before.wait(lambda: not before.child.isalive(), "the end of the first look")
    inside.wait_for(rf"step +(?!{step}\b)\d+ +")  # it is drawn while nobody looks
    for columns, lines in ((120, 40), (60, 15), (80, 24)):
        with closing(Pty(*inside.attach, columns=columns, lines=lines, term="screen-256color")) as after:
            after.wait(
                lambda after=after, columns=columns, old=step: (
                    is_whole(after.text, columns) and step_in(after.text) > old
                ),  # type: ignore[misc]
                f"the whole screen at {columns}x{lines}",
            )
            step = step_in(after.text)
            inside.detach()
            after.wait(lambda after=after: not after.child.isalive(), "the end of the look")  # type: ignore[misc]
    inside.press("q")
