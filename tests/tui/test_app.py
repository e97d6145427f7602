"""The app as a whole: themes, the palette, leaving, and what it needs to be fast and quiet."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from engine.core.settings import Settings
from tests.support import PATIENCE, entries
from tests.tui.fake_engine import RUN, FakeEngine, FakeRun
from tests.tui.seen import after, run_screen, showing, until, until_seen
from tui.app import RankdeckApp
from tui.data.off_loop import off_loop
from tui.screens.home import HomeScreen
from tui.theme import without_colours
from tui.widgets.rank_table import RankTable


async def test_a_slow_line_is_painted_once_a_second(engine: FakeEngine):
    engine.add_run("far-1515")
    app = RankdeckApp(engine, open_run="far-1515", slow=True)
    async with showing(app, "● running"):
        own = [timer._interval for timer in run_screen(app)._timers if "paint" in timer.name or "poll" in timer.name]
        assert len(own) == 4
        assert min(own) >= 1.0


async def test_nothing_is_animated(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with showing(app, "Plan: quickstart"):
        assert app.animation_level == "none"


async def test_a_file_server_that_hangs_holds_nothing_up(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    """The keys work while profiles are read, and leaving does not wait for the read."""
    never = threading.Event()
    monkeypatch.setattr(engine, "profiles", never.wait)
    app = RankdeckApp(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        await after(pilot, "question_mark", "Everywhere")
        await pilot.press("escape", "q")
        await until(pilot, lambda: not app.is_running, "the end of the app")
    never.set()


async def test_off_the_loop_results_and_errors_come_back_and_a_cancelled_wait_is_dropped():
    def divide(number: int) -> float:
        return 1 / number

    assert await off_loop(divide, 4) == 0.25
    with pytest.raises(ZeroDivisionError):
        await off_loop(divide, 0)
    release = threading.Event()
    waiting = asyncio.create_task(off_loop(release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()


def test_home_is_painted_without_what_only_other_screens_need():
    code = (
        "import sys, tui.app, tui.screens.home;"
        "print([name for name in ('plotext', 'tomlkit', 'torch', 'tui.screens.run', 'tui.screens.edit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"


def test_the_app_imports_nothing_of_the_engine_but_its_client_and_its_core():
    code = (
        "import sys, tui.app, tui.notices, tui.screens.run, tui.screens.edit, tui.screens.help, tui.commands;"
        "print(sorted({name for name in sys.modules if name.startswith('engine.') and not name.startswith('engine.core')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    names = "editor notices notices.notify protocols".split()
    assert done.stdout.strip() == str(["engine.client", *(f"engine.client.{name}" for name in names), "engine.gate"])


async def test_home_is_below_every_other_screen(engine: FakeEngine):
    engine.add_run("first-1616")
    app = RankdeckApp(engine, open_run="first-1616")
    async with showing(app, "● running"):
        assert isinstance(app.screen_stack[0], HomeScreen)


# --- without colours -------------------------------------------------------------------------------------------------


async def test_without_colours_the_terminal_keeps_its_own_and_the_cursor_is_reversed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    app = RankdeckApp(FakeEngine(tmp_path))
    async with showing(app, "Plan: quickstart", size=(120, 40)):
        segments = [segment for strip in app.screen._compositor.render_strips() for segment in strip]
        assert all(not part.style or part.style.color is part.style.bgcolor is None for part in segments)
        reversed_text = "".join(segment.text for segment in segments if _is_reversed(segment))
        assert reversed_text.split() == ["quickstart", "gloo", "localhost:4", "gpt"]


@pytest.mark.parametrize("theme", ["rankdeck-dark", "rankdeck-light"])
async def test_without_colours_one_sees_which_pane_has_the_keys_and_where_the_log_is_scrolled_to(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, theme: str
):
    monkeypatch.setenv("NO_COLOR", "1")
    engine.add_run("grey-1414").write(0, "".join(f"line {number}\n" for number in range(200)))
    app = RankdeckApp(engine, Settings(theme=theme), open_run="grey-1414")
    async with showing(app, "line 199") as pilot:

        def underlined() -> str:
            strips = app.screen._compositor.render_strips()
            return "".join(part.text for strip in strips for part in strip if part.style and part.style.underline)

        def bar() -> list[bool]:
            """Whether the cells of the log's scrollbar are reversed."""
            log = app.screen.query_one("#log").region
            strips = app.screen._compositor.render_strips()[log.y + 1 : log.bottom - 1]
            cells = [next(iter(strip.crop(log.right - 2, log.right - 1))).style for strip in strips]
            return [bool(style and style.reverse) for style in cells]

        await until(pilot, lambda: underlined().strip() == "Ranks", "the title of the pane with the keys")
        await until(pilot, lambda: bar() == sorted(bar()) and 0 < sum(bar()) < len(bar()), "the bar at the end")
        await pilot.press("3")
        await until(pilot, lambda: underlined().strip().startswith("Log"), "the title of the log")


def test_without_colours_only_what_stands_out_from_the_background_is_reversed():
    white, black = Color.parse("#ffffff"), Color.parse("#000000")
    style = Style(color="red", bgcolor="rgb(255,255,255)", bold=True)
    assert without_colours(style, black) == Style(bold=True, reverse=True)
    assert without_colours(style, white) == Style(bold=True)


async def test_ctrl_z_suspends_and_is_no_letter_of_a_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where no Python files lie
    suspended = []
    monkeypatch.setattr(RankdeckApp, "action_suspend_process", lambda app: suspended.append(app.screen))
    app = RankdeckApp(FakeEngine(tmp_path))
    async with showing(app, "Plan: quickstart") as pilot:
        await after(pilot, "ctrl+z n", "New: my-run")
        await pilot.press("ctrl+z")
        await until(pilot, lambda: len(suspended) == 2, "two suspensions")
        await until_seen(pilot, "New: my-run ")


def _is_reversed(segment: Segment) -> bool:
    return bool(segment.text.strip() and segment.style and segment.style.reverse)


SMALL = entries("tui/app", "small")
"""By screen: the key that opens it, what is seen then, the keys that are pressed on a tiny terminal, and what is seen on a large one."""


@pytest.mark.parametrize("size", [(60, 15), (20, 5), (1, 1)])
@pytest.mark.parametrize("screen", SMALL)
async def test_a_tiny_terminal_is_no_reason_to_end(
    engine: FakeEngine, run: FakeRun, screen: str, size: tuple[int, int]
):
    opens, first, keys, last = SMALL[screen]
    app = RankdeckApp(engine, open_run=RUN if screen in ("run", "stacks") else None, open_profile="quickstart")
    async with showing(app, "Plan: quickstart" if opens else first) as pilot:
        await after(pilot, (*opens,), first)
        await pilot.resize_terminal(*size)
        if screen == "run":
            run.fail(2)
        await pilot.press(*keys.split())
        await pilot.resize_terminal(120, 40)
        await until_seen(pilot, last)


@pytest.mark.parametrize(
    ("term", "theme"), [("screen", "rankdeck-dark"), ("linux", "rankdeck-light"), ("xterm-256color", "ansi-dark")]
)
async def test_a_failed_rank_is_red_and_the_cursor_is_seen_where_colours_are_few(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, term: str, theme: str
):
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("COLORTERM", raising=False)
    engine.add_run("few-1616").fail(1)
    app = RankdeckApp(engine, Settings(theme=theme), open_run="few-1616")
    async with showing(app, "◆ holding", "✖ failed") as pilot:
        await until(pilot, lambda: app.screen.query_one(RankTable).cursor_rank == 1, "the rank that failed")
        await pilot.press("k")
        await pilot.pause()
        parts = [part for strip in app.screen._compositor.render_strips() for part in strip]
        row = next(part.style for part in parts if "failed" in part.text)
        assert row is not None
        assert row.color is not None
        assert row.color.name in ("red", "color(1)")
        assert row.bgcolor != row.color
        assert not row.reverse
        cursor = next(part.style for part in parts if "▸" in part.text)
        assert cursor is not None
        assert cursor.reverse or cursor.bgcolor
