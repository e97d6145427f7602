"""The home screen: profiles, their plans, runs, and what enter does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input

from engine.core.catalogue import ProfileEntry
from engine.core.errors import CheckError, SupervisorElsewhereError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from tests.tui.fake_engine import FakeClient, FakeEngine, entry, planned, profile
from tests.tui.seen import text_of, type_at_once, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.screens.confirm import NoticeScreen
from tui.screens.edit import EditScreen
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.text.plan import plan_text
from tui.widgets.line_list import LineList


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_new_user_sees_profiles_the_plan_of_the_first_and_what_to_do(engine: FakeEngine, size: tuple[int, int]):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=size) as pilot:
        text = await until_seen(pilot, "quickstart", "mine", "gloo", "localhost:4", "enter launch", "│ 0│ 1│ 2│ 3│")
        assert "No runs yet. Launch one with enter." in text
        assert "rank 0" in text


def test_the_plan_offers_the_modules_that_ranks_imported_slowly():
    plan = msgspec.structs.replace(planned(profile("mine")), slow_imports=(("transformers.trainer", 4.71),))
    text = plan_text(plan, 120).plain
    assert "transformers.trainer in 4.7 s" in text
    assert 'launch.preload = ["transformers.trainer"]' in text


async def test_the_plan_follows_the_cursor_and_shows_the_command_of_rank_0(engine: FakeEngine):
    engine.entries[1] = entry(
        profile("mine", nodes="localhost:2", recipe="linear", more='args = ["--steps", "7"]\n'), engine.folder
    )
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart (shipped)")
        await pilot.press("j")
        await until_seen(pilot, "Plan: mine (yours)", "2 ranks on 1 node", ".../rankdeck/recipes/linear.py --steps 7")
        await pilot.press("up")
        await until_seen(pilot, "Plan: quickstart (shipped)", "gpt.py")


async def test_secret_arguments_are_not_shown(engine: FakeEngine):
    more = 'args = ["--token", "swordfish", "--api-key=mackerel", "--steps", "7"]\n'
    engine.entries = [entry(profile("hidden", recipe="linear", more=more), engine.folder)]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        text = await until_seen(pilot, "--token '•••'", "'--api-key=•••'", "--steps 7")
        assert "swordfish" not in text
        assert "mackerel" not in text


async def test_values_of_secret_variables_are_not_shown(engine: FakeEngine):
    secret = profile("hidden", more='[env]\nHF_TOKEN = "swordfish"\nOMP_NUM_THREADS = "3"\n')
    engine.entries = [entry(secret, engine.folder)]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        text = await until_seen(pilot, "OMP_NUM_THREADS=3", "HF_TOKEN=•••")
        assert "swordfish" not in text


async def test_the_plan_says_which_variables_do_nothing(engine: FakeEngine):
    engine.entries = [entry(profile("hasty", more='[env]\nNCCL_TIMEOUT = "5"\n'), engine.folder)]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "warning", "env.NCCL_TIMEOUT does nothing", "backend.timeout")


async def test_a_broken_profile_is_listed_with_its_error_and_cannot_be_launched(engine: FakeEngine):
    error = "broken.toml:3: layout.ranks: unknown key [/red"
    engine.entries.append(
        ProfileEntry(name="broken", path=engine.folder / "b.toml", source="here", profile=None, error=error)
    )
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "broken  ")
        await pilot.press("G")
        await until_seen(pilot, "Profile: broken", "unknown key [/red")
        assert "enter launch" not in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert engine.launched == []


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
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "broken  ")
        await pilot.press("G")
        await until_seen(pilot, "Profile: broken", "e opens the file in your editor")
        await pilot.press("e")
        await until(pilot, lambda: (tmp_path / "asked").exists())
        await until(pilot, lambda: any("broken.toml:3 was open" in notice.message for notice in app._notifications))
    assert (tmp_path / "asked").read_text().split() == ["+3", str(path)]


async def test_a_profile_that_appears_later_is_seen_without_a_key(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home_lists.RUNS_SECONDS", 0.05)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "quickstart")
        engine.entries.append(entry(profile("later"), engine.folder))
        await until_seen(pilot, "later  ")


async def test_plan_and_card_follow_what_changes_below_the_cursor(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home_lists.RUNS_SECONDS", 0.05)
    run = engine.add_run("first-1111")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart", "4 ranks on 1 node")
        engine.entries[0] = entry(profile("quickstart", nodes="localhost:7"), engine.folder, "shipped")
        await until_seen(pilot, "7 ranks on 1 node")
        await pilot.press("l")
        await until_seen(pilot, "Run: first", "progress   step 0/100")
        run.tick(41, loss=1.5)
        await until_seen(pilot, "progress   step 41/100", "loss       1.5")


async def test_a_double_click_on_a_run_opens_it(engine: FakeEngine):
    engine.add_run("first-1111")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "● first")
        await pilot.double_click("#runs", offset=(4, 1))
        await until(pilot, lambda: isinstance(app.screen, RunScreen))


async def test_a_preview_that_fails_shows_its_reason_and_the_next_step(engine: FakeEngine):
    engine.entries.append(entry(profile("strange", backend="ucx"), engine.folder))
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "strange")
        await pilot.press("end")
        await until_seen(pilot, "there is no backend 'ucx'")


async def test_enter_launches_once_and_shows_the_run(engine: FakeEngine):
    engine.hold_launch = asyncio.Event()
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
        await pilot.press("enter", "enter", "enter")
        engine.hold_launch.set()
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run screen")
        await until_seen(pilot, "quickstart", "4/4 ranks")
        assert [launched.name for launched in engine.launched] == ["quickstart"]
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, HomeScreen), "home")
        await until_seen(pilot, "keeps running: rankdeck attach quickstart-0001")


async def test_a_launch_that_fails_shows_why_and_loses_nothing(engine: FakeEngine):
    engine.launch_error = CheckError("python3 has no torch", hint="pip install [torch]")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
        await pilot.press("enter")
        await until_seen(pilot, "quickstart was not launched", "python3 has no torch", "pip install [torch]")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, NoticeScreen), "home")
        await until_seen(pilot, "Plan: quickstart")
        engine.launch_error = None
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run screen")


async def test_runs_are_listed_with_their_state_and_enter_opens_them(engine: FakeEngine):
    ended = engine.add_run("old-1111")
    ended.tick(100, loss=1.43)
    ended.end()
    held = engine.add_run("held-2222")
    held.fail(2)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        text = await until_seen(pilot, "✔ old ", "◆ held", "rank 2 was killed by SIGKILL")
        assert "loss 1.43" in text
        await pilot.press("tab")
        await until_seen(pilot, "Run: held", "rankdeck attach held-2222", "enter watch")
        await pilot.press("enter")
        await until_seen(pilot, "◆ holding", "rank 2 was killed by SIGKILL")


async def test_a_run_of_another_login_node_is_shown_with_the_command_that_watches_it(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    run = engine.add_run("far-1111")
    seen = msgspec.structs.replace(run.summary(), reachable=False, elsewhere=True, host="login9")
    monkeypatch.setattr(run, "summary", lambda: seen)

    async def refuse(run: str) -> FakeClient:
        raise SupervisorElsewhereError("the supervisor of far-1111 is on login9", hint="ssh -t login9 rankdeck")

    monkeypatch.setattr(engine, "attach", refuse)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "supervisor on login9")
        await pilot.press("tab")
        await until_seen(pilot, "Run: far", "ssh -t login9 rankdeck attach far-1111", "can't watch it from this host")
        await pilot.press("enter")
        await until_seen(pilot, "the supervisor of far-1111 is on login9", "ssh -t login9 rankdeck")


async def test_runs_that_appear_later_are_seen_without_a_key(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home_lists.RUNS_SECONDS", 0.05)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "No runs yet")
        engine.add_run("late-3333")
        await until_seen(pilot, "● late")


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
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
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


async def test_leaving_says_which_runs_go_on(engine: FakeEngine):
    engine.add_run("ended-8888").end()
    engine.add_run("alive-9999")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "● alive")
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running, "the end of the app")
    assert app.parting == "alive keeps running: rankdeck attach alive-9999"


async def test_the_filter_narrows_both_lists_and_esc_shows_all_again(engine: FakeEngine):
    engine.add_run("mine-4444")
    engine.add_run("other-5555")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "● other", "● mine", "quickstart  ")
        await pilot.press("slash", *"mine")
        await until_gone(pilot, "● other")
        await until_gone(pilot, "quickstart")
        await until_seen(pilot, "● mine")
        await pilot.press("enter")
        await until_seen(pilot, "Plan: mine")
        await pilot.press("escape")
        await until_seen(pilot, "quickstart", "● other")


async def test_words_that_arrive_together_with_the_key_of_a_search_are_searched_for(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
        type_at_once(app, "/", *"quick", "escape", "/", *"quid")
        await until(pilot, lambda: [line.value for line in app.screen.query(Input)] == ["quid"], "the filter")
        await pilot.press("escape")
        type_at_once(app, "?", "/", *"quit", "escape", "/", *"kill")
        await until(pilot, lambda: [line.value for line in app.screen.query(Input)] == ["kill"], "the search")
        await until_seen(pilot, "╭─ Help", "Send SIGKILL")


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40)])
async def test_the_line_for_the_filter_leaves_the_panes_where_they_are(engine: FakeEngine, size: tuple[int, int]):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=size) as pilot:
        await until_seen(pilot, "Plan: quickstart")
        before = app.screen.query_one("#body").region
        await pilot.press("slash")
        await until_seen(pilot, "filter by name")
        body = app.screen.query_one("#body").region
        assert (body.x, body.width, app.screen.max_scroll_x) == (before.x, before.width, 0)


async def test_runs_of_one_name_are_told_apart_in_a_narrow_list(engine: FakeEngine):
    name = "a-name-that-needs-more-than-the-column"
    for run in (f"{name}-1111", f"{name}-2222", "single-3333"):
        engine.add_run(run)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        text = await until_seen(pilot, "…-1111 ", "…-2222 ", "single ")
        assert "3333" not in text


async def test_the_palette_says_when_nothing_matches(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
        await pilot.press("colon", *"zzz")
        await until_seen(pilot, "No matches found")


async def test_a_filter_that_matches_nothing_says_so(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "quickstart")
        await pilot.press("slash", *"zzz")
        await until_seen(pilot, "Nothing matches.")


async def test_without_any_profile_the_first_step_is_shown(engine: FakeEngine):
    engine.entries = []
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "There is no profile yet.", "Press n to create one.")
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, EditScreen), "the form")


async def test_the_cursor_begins_on_the_profile_that_was_asked_for(engine: FakeEngine):
    app = RankdeckApp(engine, open_profile="mine")
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: mine")


async def test_the_cursor_begins_on_quickstart_for_whoever_has_no_profile_yet(engine: FakeEngine, tmp_path: Path):
    quickstart, own = engine.entries
    another = entry(profile("another"), tmp_path, "shipped")
    engine.entries = [another, quickstart]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: quickstart")
    engine.entries = [another, quickstart, own]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "Plan: another")


async def test_names_that_look_like_markup_are_shown_as_they_are(engine: FakeEngine):
    odd = "[red[/"
    engine.entries = [ProfileEntry(name=odd, path=Path("/x/[/a].toml"), source="here", profile=None, error="bad [/b")]
    run = engine.add_run("odd-6666")
    run.change(name=odd)
    run.fail(1, note="[bold")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "[red[/  ✖ bad [/b", "◆ [red[/")
        await pilot.press("tab")
        await until_seen(pilot, "Run: [red[/")
        await pilot.press("colon")
        await until_seen(pilot, "watch odd-6666")


async def test_an_engine_that_breaks_is_reported_and_the_app_stays(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    def broken() -> list[ProfileEntry]:
        raise OSError("stale file handle [/")

    monkeypatch.setattr(engine, "profiles", broken)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await until_seen(pilot, "profiles: stale file handle [/")
        assert isinstance(app.screen, HomeScreen)


@pytest.mark.parametrize("size", [(60, 15), (20, 5), (1, 1)])
async def test_a_tiny_terminal_is_no_reason_to_end(engine: FakeEngine, size: tuple[int, int]):
    engine.add_run()
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=size) as pilot:
        await until(
            pilot, lambda: isinstance(app.screen, HomeScreen) and bool(app.screen.lists.known_profiles), "profiles"
        )
        await pilot.press("j", "tab", "slash", "x", "escape")
        await pilot.resize_terminal(120, 40)
        await until_seen(pilot, "quickstart", "● quickstart")


async def test_the_cursor_stays_visible_when_the_terminal_becomes_lower(engine: FakeEngine):
    engine.entries = [entry(profile(f"p{number:02}"), Path("/profiles")) for number in range(20)]
    app = RankdeckApp(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "p00")
        await pilot.press("G")
        await until_seen(pilot, "p19")
        await pilot.resize_terminal(120, 60)
        await until_seen(pilot, "p00")
        await pilot.resize_terminal(80, 24)
        profiles = app.screen.query_one("#profiles", LineList)
        await until(
            pilot, lambda: profiles.size.height < 20 <= profiles.scroll_offset.y + profiles.size.height, "the cursor"
        )


async def test_h_and_l_point_at_a_list_and_enter_in_the_runs_never_launches(engine: FakeEngine):
    engine.add_run("mine-7f3a")
    engine.add_run("mine-8b2c")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart", "mine-7f3a")
        await pilot.press("l", "l", "g", "j", "j", "enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run")
        assert engine.launched == []
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, HomeScreen), "home")
        await pilot.press("h", "h")
        await until(pilot, lambda: app.screen.query_one("#profiles").has_focus, "the focus on the profiles")


async def test_keys_that_arrive_together_never_launch_what_the_eye_has_left(engine: FakeEngine):
    engine.add_run("other-1")
    app = RankdeckApp(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart", "other")
        type_at_once(app, "l", "enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run")
    assert engine.launched == []


async def test_e_on_a_run_edits_its_profile_or_says_why_not(engine: FakeEngine):
    engine.add_run("mine-7f3a")
    engine.add_run("gone-7f3a")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart", "mine", "gone")
        await pilot.press("l", "g")
        await until_seen(pilot, "Run: gone")
        await pilot.press("e")
        await until_seen(pilot, "the profile gone does not exist any more; d makes a new one")
        await pilot.press("j")
        await until_seen(pilot, "Run: mine")
        await pilot.press("e")
        await until_seen(pilot, "Edit: mine")


async def test_c_and_d_on_a_run_take_what_it_was_launched_with(engine: FakeEngine):
    engine.add_run("gone-7f3a")
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: quickstart", "gone")
        await pilot.press("l")
        await until_seen(pilot, "Run: gone")
        await pilot.press("c")
        await until_seen(pilot, "Check of gone")
        await pilot.press("q")
        await until_seen(pilot, "Run: gone")
        await pilot.press("d")
        await until_seen(pilot, "New: gone-copy", "localhost:3")


def folder_profile(engine: FakeEngine, more: str) -> ProfileEntry:
    """The only profile, found in the working directory."""
    engine.entries = [entry(profile("theirs", more=more), engine.folder, "here")]
    return engine.entries[0]


async def test_a_profile_of_the_folder_runs_nothing_before_it_is_trusted(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    previews: list[str] = []
    monkeypatch.setattr("tui.screens.home.WARM_SECONDS", 0.0)
    preview = engine.preview

    def noted(profile: Profile) -> LaunchPlan:
        previews.append(profile.name)
        return preview(profile)

    monkeypatch.setattr(engine, "preview", noted)
    theirs = folder_profile(engine, '[launch]\nsetup = "API_TOKEN=hunter2 touch /tmp/owned"\n').profile
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Press enter to decide.", "touch /tmp/owned")
        assert "hunter2" not in text_of(app)
        await pilot.press("enter")
        await until_seen(pilot, "Trust theirs?", "launch.setup  API_TOKEN=••• touch /tmp/owned")
        assert "hunter2" not in text_of(app)
        await pilot.press("n")
        await until_gone(pilot, "Trust theirs?")
        assert (engine.launched, engine.prewarmed, previews) == ([], [], [])
        await pilot.press("enter")
        await until_seen(pilot, "Trust theirs?")
        await pilot.press("y")
        await until(pilot, lambda: engine.launched == [theirs], "the launch")
        assert engine.trusted == [theirs]


async def test_a_profile_of_the_folder_without_programs_is_launched_without_a_question_and_not_prewarmed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tui.screens.home.WARM_SECONDS", 0.0)
    theirs = folder_profile(engine, '[env]\nLD_PRELOAD = "/tmp/theirs.so"\n')
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until_seen(pilot, "Plan: theirs (here)", "LD_PRELOAD")
        assert engine.prewarmed == []
        await pilot.press("enter")
        await until(pilot, lambda: engine.launched == [theirs.profile], "the launch")


async def test_a_trusted_profile_of_the_folder_is_prewarmed(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tui.screens.home.WARM_SECONDS", 0.0)
    theirs = folder_profile(engine, '[launch]\nsetup = "module load cuda"\n').profile
    assert theirs is not None
    engine.trust(theirs)
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await until(pilot, lambda: theirs in engine.prewarmed, "the warm start")
        assert "runs none of them" not in text_of(app)
