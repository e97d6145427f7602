"""Keys and theme of the user's settings: bound, shown, explained, and refused where they can't be."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import ProfileError
from engine.core.metrics.resources import GpuUse
from engine.core.settings import Look, Notify, Settings, Units, parse_settings
from tests.support import PATIENCE, from_table
from tests.tui.fake_engine import FakeEngine
from tests.tui.seen import after, showing, until, until_seen
from tui.app import RankdeckApp
from tui.keymap import THEMES, check_theme, keymap_of
from tui.keys import KEYS
from tui.screens.run import RunScreen
from tui.text.help import help_text


def keymap(text: str) -> dict[str, str]:
    return keymap_of(*parse_settings(text, file="config.toml"))


def wrong(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        keymap(text)
    return str(caught.value)


def test_a_key_is_a_character_a_name_or_one_with_modifiers():
    found = keymap('[keys]\nrun.kill = ["X", "F9", "ctrl+x", "alt+x", "^y", "!", "shift+z"]\n')
    assert found["run.kill"] == "X,f9,ctrl+x,alt+x,ctrl+y,exclamation_mark,Z"


def test_every_key_of_the_table_can_be_written_as_the_help_shows_it():
    for key in KEYS:
        words = ", ".join(f'"{word}"' for word in key.shown.split(" "))
        assert set(keymap(f"[keys]\n{key.id} = [{words}]\n")[key.id].split(",")) == set(key.keys.split(",")), key.id


@from_table
def test_what_is_wrong_is_named_with_its_line(text: str, said: str):
    assert wrong(text).startswith(said)


def test_keys_can_be_exchanged_and_shared_by_places_that_are_never_there_together():
    assert keymap('[keys]\nrun.kill = "t"\nrun.stacks = "x"\n') == {"run.kill": "t", "run.stacks": "x"}
    assert keymap('[keys]\nhome.new = "X"\nrun.kill = "X"\n') == {"home.new": "X", "run.kill": "X"}


def test_an_unknown_theme_is_refused_with_the_nearest():
    with pytest.raises(ProfileError, match="did you mean rankdeck-light"):
        check_theme(*parse_settings('theme = "rankdeck-lite"\n', file="config.toml"))


async def test_the_app_has_every_theme_that_settings_may_name(tmp_path: Path):
    assert set(RankdeckApp(FakeEngine(tmp_path)).available_themes) == set(THEMES)


def test_the_help_shows_changed_keys():
    assert any(line.startswith("X ") and "SIGKILL" in line for line in str(help_text("", 200, ascii=True, keymap={"run.kill": "X"})).splitlines())  # fmt: skip


def test_the_help_of_a_key_names_the_changed_key_that_it_speaks_of():
    keymap = {"run.back": "B", "home.back": "Q", "run.next": "j"}
    text = str(help_text("", 200, ascii=True, keymap=keymap))
    assert "whole screen; B shows the other panes again." in text
    assert "contain a text; Q shows all again." in text
    assert "or traceback; j and N go on from there." in text
    assert "{" not in text


async def test_the_app_tells_of_a_run_that_fails_and_not_of_what_was_so_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # fmt: skip
    monkeypatch.setattr("tui.notices.TELL_SECONDS", 0.01)
    engine = FakeEngine(tmp_path)
    old = engine.add_run("old-aaaa")
    old.fail(2)
    new = engine.add_run("new-bbbb", now=time.time() + 1)
    script = f'echo "$RANKDECK_EVENT $RANKDECK_RUN" >> {tmp_path}/told'
    app = RankdeckApp(engine, Settings(notify=Notify(command=("sh", "-c", script))))
    told = tmp_path / "told"
    async with app.run_test(size=(80, 24)) as pilot:
        new.fail(1)
        await until(pilot, lambda: told.exists() and told.read_text().count("\n") == 1)
        new.end("stopped")
        await until(pilot, lambda: told.read_text().count("\n") == 2)
    assert told.read_text() == "failure new-bbbb\nend new-bbbb\n"


async def test_the_end_of_the_app_ends_the_command_for_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.app.END_SECONDS", PATIENCE)
    monkeypatch.setattr("tui.notices.TELL_SECONDS", 0.01)
    engine = FakeEngine(tmp_path)
    run = engine.add_run("new-bbbb")
    pid = tmp_path / "pid"
    app = RankdeckApp(engine, Settings(notify=Notify(command=("sh", "-c", f"echo $$ > {pid}; exec sleep 600"))))
    async with app.run_test(size=(80, 24)) as pilot:
        run.fail(1)
        await until(pilot, lambda: pid.exists() and pid.read_text().endswith("\n"))
    with pytest.raises(ProcessLookupError):  # killed, and its status is read
        os.kill(int(pid.read_text()), 0)


async def test_the_terminal_gets_bell_and_notification_on_any_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.notices.TELL_SECONDS", 0.01)
    engine = FakeEngine(tmp_path)
    run = engine.add_run("new-bbbb", now=time.time() + 1)
    app = RankdeckApp(engine, Settings(notify=Notify(bell=True, desktop="osc9")), open_run="new-bbbb")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        written: list[str] = []
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        run.end("failed")
        await until(pilot, lambda: any("\x1b]9;rankdeck new-bbbb: failed" in text for text in written))
        assert any(text.startswith("\a") for text in written)


async def test_how_runs_are_shown_is_kept_and_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.app.LOOK_SECONDS", 0.0)
    engine = FakeEngine(tmp_path)
    engine.add_run("new-bbbb").tick(1)
    app = RankdeckApp(engine, open_run="new-bbbb")
    async with showing(app, "loss", "whole run", "Log: rank 0", size=(120, 40)) as pilot:
        await after(pilot, "w W vertical_line", "throughput", "shown where there is room")
        await pilot.press(*"throughput", "enter")
        await pilot.press("2", "P")
        wanted = Look(pane="chart", hidden=("throughput",), curves="10 min", own_scale=True, charts=4)
        kept = {("look", field): getattr(wanted, field) for field in wanted.__struct_fields__}
        await until(pilot, lambda: engine.settings == kept, "the look is kept")
    app = RankdeckApp(engine, Settings(look=wanted), open_run="new-bbbb")
    async with app.run_test(size=(120, 40)) as pilot:
        text = await until_seen(pilot, "curves: 10 min, own scales", "Chart", "▲ r0  ● mean")
        assert "Log: rank" not in text
        assert "tok/s" not in next(line for line in text.splitlines() if "rank state" in line)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-5:30")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
async def test_sizes_and_times_are_in_the_units_of_the_user(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    run = engine.add_run("new-bbbb")
    gpu = GpuUse(utilisation=97, memory=61 << 30, memory_total=80 << 30)
    run.ranks = [msgspec.structs.replace(rank, gpu=gpu) for rank in run.ranks]
    run.change(event=("a warning", "info"))
    for units, size, clock in (
        (Units(), " 61 G ", "20:36:40 "),
        (Units(memory="GB", time="UTC"), " 65 G ", "15:06:40Z "),
    ):
        async with showing(
            RankdeckApp(engine, Settings(units=units), open_run="new-bbbb"), size, size=(120, 40)
        ) as pilot:
            await after(pilot, "4", clock, "a warning")
