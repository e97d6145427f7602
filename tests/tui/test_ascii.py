"""With `--ascii`, every screen is drawn with ASCII characters alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from engine.core.errors import RankdeckError
from tests.support import from_table
from tests.tui.fake_engine import FakeEngine, entry, profile
from tests.tui.seen import after, showing, text_of, until, until_seen
from tui.app import RankdeckApp
from tui.screens.edit import EditScreen
from tui.start import is_ascii_terminal

RUN = "quickstart-7f3a"
LONG = "a-name-that-is-much-longer-than-any-column"


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine(tmp_path)
    engine.entries.append(entry(profile(LONG, nodes="localhost:8"), tmp_path))
    engine.entries.append(entry(profile("secret", more='[env]\nHF_TOKEN = "x"\n'), tmp_path))
    engine.add_run(f"{LONG}-1111").end("stopped")
    engine.add_run(f"{LONG}-2222").end()
    run = engine.add_run(RUN)
    run.ranks[3] = run._rank(3, attempt=0)
    for step in (*range(1, 60), *range(40, 50)):
        run.tick(step, loss=None if step == 20 else 3.0 - step / 100)
    run.write(0, "\n".join(f"step {step} " + "long " * 60 for step in range(80)) + "\n")
    run.fail(2, traceback="\n".join(f"line {number}" for number in range(40)))
    return engine


def assert_ascii(pilot: Pilot[Any]) -> None:
    app = pilot.app
    assert isinstance(app, RankdeckApp)
    text = text_of(app)
    odd = {character for character in text if not character.isascii()}
    assert not odd, f"{odd} in\n{text}"


async def after_in_ascii(pilot: Pilot[Any], keys: str | Sequence[str], *texts: str) -> None:
    await after(pilot, keys, *texts)
    assert_ascii(pilot)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 45)])
async def test_home_the_form_the_help_and_the_palette(engine: FakeEngine, size: tuple[int, int]):
    app = RankdeckApp(engine, ascii=True, open_profile="quickstart")
    async with showing(app, "Plan: quickstart", "! quickstart", size=size) as pilot:
        assert_ascii(pilot)
        for title in ("Plan: mine", "Plan: a-name", "Plan: secret"):
            await after_in_ascii(pilot, "down", title, "rank 0")
        await after_in_ascii(pilot, "shift+tab", "Run: quickstart")
        await after_in_ascii(pilot, ("slash", *"zzz"), "Nothing matches.")
        await after_in_ascii(pilot, "escape ctrl+c", "q goes back or leaves")
        await after_in_ascii(pilot, "colon", "new (n)")
        await after_in_ascii(pilot, (*"zzz",), "No matches found")
        await after(pilot, "escape e", "on failure" if size[1] > 40 else "backend")
        await until(pilot, lambda: isinstance(app.screen, EditScreen) and app.focused is not None, "the first line")
        await after_in_ascii(pilot, "slash ctrl+s", "is not a valid name", "this line is not valid")
        await after_in_ascii(pilot, "backspace f4", "Save as")
        await after_in_ascii(pilot, "escape f1", "Help")
        for _ in range(12):
            await pilot.press("pagedown")
            assert_ascii(pilot)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 45)])
async def test_a_run_with_all_its_panes_and_questions(engine: FakeEngine, size: tuple[int, int]):
    app = RankdeckApp(engine, ascii=True, open_run=RUN)
    async with showing(app, "! holding", "X failed", "Why", size=size) as pilot:
        assert_ascii(pilot)
        for key, seen in (("3", "Log"), ("4", "Events"), ("5", "Why"), ("2", "Chart")):
            await after_in_ascii(pilot, (key, key), seen)
        await until_seen(pilot, "* mean of 4", "49")
        assert_ascii(pilot)
        await after_in_ascii(pilot, "3 a", "all 4 ranks")
        await after_in_ascii(pilot, ("slash", *"step", "enter"), "'step'")
        await after_in_ascii(pilot, "escape 1 s", "Stop quickstart?")
        await after(pilot, "escape", gone="Stop quickstart?")
        engine.live[RUN].change(generation=2, name=LONG)
        await after_in_ascii(pilot, "t", "Stacks of a-name", "ranks 0-3: waiting in all_reduce")
        await after_in_ascii(pilot, "escape", "0 | generation 2" if size[0] >= 100 else "attempt 0.2")
        app.show_error("It did not work", RankdeckError("a reason", hint="a step"))
        await until_seen(pilot, "a reason")
        assert_ascii(pilot)


@from_table
def test_a_terminal_without_unicode_gets_ascii(environment: dict[str, str], is_ascii: bool):
    assert is_ascii_terminal(environment) == is_ascii


async def test_what_is_not_known_is_a_hyphen(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_run(RUN)
    app = RankdeckApp(engine, ascii=True, open_run=RUN)
    async with showing(app, "* running", "loss         -", size=(160, 45)) as pilot:
        assert_ascii(pilot)
