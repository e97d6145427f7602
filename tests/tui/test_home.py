"""The home screen: profiles, their plans, runs, and what enter does."""

import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from engine.core.catalogue import ProfileEntry
from engine.core.errors import SupervisorElsewhereError
from tests.tui.fake_engine import LAUNCHED_AT, FakeClient, FakeEngine, entry, planned, profile
from tests.tui.seen import after, showing, text_of, until, until_seen
from tui.app import RankdeckApp
from tui.screens.home import HomeScreen
from tui.text.plan import plan_text
from tui.widgets.line_list import LineList


def test_the_plan_offers_the_modules_that_ranks_imported_slowly():
    plan = msgspec.structs.replace(planned(profile("mine")), slow_imports=(("transformers.trainer", 4.71),))
    text = plan_text(plan, 120).plain
    assert "transformers.trainer in 4.7 s" in text
    assert 'launch.preload = ["transformers.trainer"]' in text


async def test_e_opens_a_broken_profile_in_the_editor_at_the_line_of_its_error(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    editor, path = tmp_path / "vim", tmp_path / "broken.toml"
    path.touch()
    editor.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/asked\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    engine.entries.append(ProfileEntry(name="broken", path=path, source="here", profile=None, error="no", line=3))
    app = RankdeckApp(engine)
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    async with showing(app, "broken  ", size=(120, 40)) as pilot:
        await after(pilot, "G", "Profile: broken", "e opens the file in your editor")
        await pilot.press("e")
        await until(pilot, lambda: (tmp_path / "asked").exists())
        await until(pilot, lambda: any("broken.toml:3 was open" in notice.message for notice in app._notifications))
    assert (tmp_path / "asked").read_text().split() == ["+3", str(path)]


async def test_plan_and_card_follow_what_changes_below_the_cursor(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home_lists.RUNS_SECONDS", 0.05)
    run = engine.add_run("first-1111")
    app = RankdeckApp(engine, open_profile="quickstart")
    async with showing(app, "Plan: quickstart", "4 ranks on 1 node", size=(120, 40)) as pilot:
        engine.entries[0] = entry(profile("quickstart", nodes="localhost:7"), engine.folder, "shipped")
        await until_seen(pilot, "7 ranks on 1 node")
        await after(pilot, "h", "Run: first", "progress   step 0/100")
        run.tick(41, loss=1.5)
        await until_seen(pilot, "progress   step 41/100", "loss       1.5")


async def test_a_run_of_another_login_node_is_shown_with_the_command_that_watches_it(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    run = engine.add_run("far-1111")
    seen = msgspec.structs.replace(run.summary(), reachable=False, elsewhere=True, host="login9")
    monkeypatch.setattr(run, "summary", lambda: seen)

    async def refuse(run: str) -> FakeClient:
        raise SupervisorElsewhereError("the supervisor of far-1111 is on login9", hint="ssh -t login9 rankdeck")

    monkeypatch.setattr(engine, "attach", refuse)
    async with showing(RankdeckApp(engine), "supervisor on login9", size=(120, 40)) as pilot:
        await until_seen(pilot, "Run: far", "ssh -t login9 rankdeck attach far-1111", "can't watch it from this host")
        await after(pilot, "enter", "the supervisor of far-1111 is on login9", "ssh -t login9 rankdeck")


async def test_a_slow_file_server_is_asked_for_runs_once_at_a_time(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home_lists.RUNS_SECONDS", 0.01)
    asked, release = [], threading.Event()
    runs = engine.runs

    def slow():
        asked.append(1)
        release.wait()
        return runs()

    monkeypatch.setattr(engine, "runs", slow)
    engine.add_run("there-7777")
    app = RankdeckApp(engine)
    async with showing(app, "Plan: quickstart") as pilot:
        ticks = 0

        def ticked() -> None:
            nonlocal ticks
            ticks += 1

        app.set_interval(0.01, ticked)
        await until(pilot, lambda: ticks >= 10, "ten periods")
        assert len(asked) == 1
        release.set()
        await until_seen(pilot, "● there")
        await until(pilot, lambda: len(asked) > 2, "the next reads")


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_the_line_for_the_filter_leaves_the_panes_where_they_are(engine: FakeEngine, size: tuple[int, int]):
    app = RankdeckApp(engine)
    async with showing(app, "Plan: quickstart", size=size) as pilot:
        before = app.screen.query_one("#body").region
        await after(pilot, "slash", "filter by name")
        body = app.screen.query_one("#body").region
        assert (body.x, body.width, app.screen.max_scroll_x) == (before.x, before.width, 0)


async def test_an_engine_that_breaks_is_reported_and_the_app_stays(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    def broken() -> list[ProfileEntry]:
        raise OSError("stale file handle [/")

    monkeypatch.setattr(engine, "profiles", broken)
    app = RankdeckApp(engine)
    async with showing(app, "profiles: stale file handle [/"):
        assert isinstance(app.screen, HomeScreen)


async def test_the_cursor_stays_visible_when_the_terminal_becomes_lower(engine: FakeEngine):
    engine.entries = [entry(profile(f"p{number:02}"), Path("/profiles")) for number in range(20)]
    app = RankdeckApp(engine)
    async with showing(app, "p00") as pilot:
        await after(pilot, "G", "p19")
        await pilot.resize_terminal(120, 60)
        await until_seen(pilot, "p00")
        await pilot.resize_terminal(80, 24)
        profiles = app.screen.query_one("#profiles", LineList)
        await until(
            pilot, lambda: profiles.size.height < 20 <= profiles.scroll_offset.y + profiles.size.height, "the cursor"
        )


def folder_profile(engine: FakeEngine, more: str) -> ProfileEntry:
    """The only profile, found in the working directory."""
    engine.entries = [entry(profile("theirs", more=more), engine.folder, "here")]
    return engine.entries[0]


async def test_a_profile_of_the_folder_is_shown_and_runs_nothing_before_it_is_trusted(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tui.screens.home.WARM_SECONDS", 0.0)
    theirs = folder_profile(engine, '[launch]\nsetup = "API_TOKEN=hunter2 touch /tmp/owned"\n')
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "not looked up: this folder is not trusted; T trusts it", "on failure")
        assert "hunter2" not in text_of(app)
        await pilot.press("enter")
        await until_seen(
            pilot, "Trust theirs?", "launch.setup  API_TOKEN=••• touch /tmp/owned", "It does not cover the code"
        )
        assert "hunter2" not in text_of(app)
        await after(pilot, "n", gone="Trust theirs?")
        assert (engine.launched, engine.prewarmed) == ([], [])
        await after(pilot, "T", "Trust theirs?")
        await after(pilot, "y", gone="not looked up")
        await until(pilot, lambda: theirs.profile in engine.prewarmed, "the warm start")
        assert (engine.launched, engine.trusted) == ([], [theirs])
        await pilot.press("enter")
        await until(pilot, lambda: engine.launched == [theirs.profile], "the launch")


async def test_a_run_under_the_cursor_shows_its_change_its_curve_its_last_line_and_why_it_failed(engine: FakeEngine):
    engine.add_run("job-1111")
    run = engine.add_run("job-2222", now=LAUNCHED_AT + 60)
    for step in range(40):
        run.tick(step, loss=4.0 - step / 20)
    run.fail(1)
    async with showing(RankdeckApp(engine), size=(120, 40)) as pilot:
        seen = await until_seen(pilot, "rank 1 was killed by SIGKILL", "look at the memory", "rank 1     step 39 loss")
        assert "(was job-1111)" in seen
        assert "██▇" in seen
        await pilot.press("j")
        seen = await until_seen(pilot, "step 0/100")
        assert "look at the memory" not in seen
