"""The app, told as stories: what happens, the keys, and what is on the screen then, in `tests/data/stories/*.txt`.

A story begins with `# ` and a fact; then one step stands on each line. The verbs before `on` make what the app finds:

    run NAME            a run that exists; the steps of a run that follow are its own (without it: `quickstart-7f3a`)
    fail, tick, end …   methods of `FakeRun`, with words as arguments: `fail 2 note='no memory'`; `times 40 write 0 'line {n}\\n'` repeats one
    clean_away          removes the run, and breaks connections to it
    profile NAME …      one more profile, by `profile` of the fake engine; `no_profiles` removes all, `drop_profile NAME` one
    broken NAME ERROR   a profile that can't be read; `trouble BACKEND TEXT`: why a backend can't run
    nodes NAMES         the nodes of a check; `finding NODE CHECK STATE TEXT | HINT`: what it finds there, else all is well
    error WHICH TEXT | HINT     an attribute of the engine or, for `answer`, of the run
    hold WHICH          a `launch`, a `check` or `answers` wait until `let WHICH`
    set NAME VALUE      a constant of a module; `env NAME VALUE`: a variable of the environment
    on WHERE SIZE…      opens the app on `home` or on a run, once for each size, with options such as `ascii=True`

After it come keys and looks; a look waits for what it says, except those that begin with `without` and `not`:

    press KEYS, type TEXT, paste TEXT, at_once KEYS, go_to LINE, double_click SELECTOR X Y, size 60x15, open RUN
    see A | B, gone A, without A | B, count 2 A, at SCREEN, leave SCREEN, not_at SCREEN, focus SELECTOR, focused, cursor RANK, value LINE TEXT
    line LINE           the line of the form that has the cursor; `typed TEXT`: what is typed into the only field; `ascii`: all is ASCII
    known               the app knows the newest of the run; `watched`, `unwatched`: it is subscribed to it, or not any more
    asked REQUEST; REQUEST      what the supervisor was asked for, or `nothing`; `launched NAMES`, `launches COUNT`, `runs NAMES`,
                        `checks COUNT`, `checks_closed COUNT`, `trusted NAMES`, `kept KEY VALUE` (a setting): of the engine
    saved PROFILE FILE          the profiles that were saved, and where: `new` is a new file; none of them: nothing
    left, parting TEXT  the app ends, and prints this text or nothing
"""

import ast
import asyncio
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from engine.core.catalogue import ProfileEntry
from engine.core.checks.findings import Finding
from engine.core.errors import CheckError, RankdeckError, SupervisorError
from engine.core.settings import Settings
from tests.support import ROOT
from tests.tui.fake_engine import FakeEngine, FakeRun, entry, profile
from tests.tui.seen import run_screen, text_of, type_at_once, until, until_gone, until_seen
from tui.app import DEFAULT_SETTINGS, RankdeckApp
from tui.widgets.form_row import FormRow
from tui.widgets.rank_table import RankTable

RUN = "quickstart-7f3a"

Story = tuple[list[str], str]  # the steps, and the size of the terminal


def stories() -> list[Any]:
    """All stories, as parameters of a test."""
    found = []
    for file in sorted((ROOT / "tests" / "data" / "stories").glob("*.txt")):
        for part in file.read_text(encoding="utf-8").removeprefix("# ").rstrip("\n").split("\n\n# "):
            fact, *steps = part.split("\n")
            begin = next(step for step in steps if step.startswith("on "))
            for size in re.findall(r" (\d+x\d+)", begin):
                found.append(pytest.param((steps, size), id=f"{file.stem}-{fact.replace(' ', '_')}-{size}"))
    return found


def value(word: str) -> Any:
    """A literal of Python, or the word itself, in which `\\n` and `\\x1b` stand for characters."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return re.sub(r"\\x..|\\u....|\\n|\\r|\\t", lambda found: found[0].encode().decode("unicode_escape"), word)


def arguments(words: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that are written as words."""
    pairs = [word.partition("=") for word in shlex.split(words)]
    named = {name: value(given) for name, equals, given in pairs if equals and name.isidentifier()}
    return [value("".join(pair)) for pair in pairs if not (pair[1] and pair[0].isidentifier())], named


def texts(words: str) -> list[str]:
    """Texts that are looked for; in quotes where spaces at their ends count."""
    return [text[1:-1] if text[0] == text[-1] == '"' else text for text in words.split(" | ")]


class Teller:
    """Tells one story. `engine`: of this story alone. `monkeypatch`: for the verbs `set` and `env`."""

    def __init__(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.monkeypatch = engine, monkeypatch
        self.run: FakeRun | None = None

    async def tell(self, steps: list[str], size: str) -> None:
        """Does all steps, in a terminal of this size."""
        on = next(index for index, step in enumerate(steps) if step.startswith("on "))
        if steps[on].startswith(f"on {RUN} "):
            self.run = self.engine.add_run(RUN)
        for step in steps[:on]:
            self.happen(step)
        (where, *_), options = arguments(steps[on].removeprefix("on "))
        settings = Settings(theme=options.pop("theme", DEFAULT_SETTINGS.theme))
        app = RankdeckApp(self.engine, settings, open_run=None if where == "home" else where, **options)
        left = steps.index("left") if "left" in steps else len(steps)
        width, height = map(int, size.split("x"))
        self.monkeypatch.chdir(self.engine.folder)  # without a script, whose name a new form would take
        async with app.run_test(notifications=True, size=(width, height)) as pilot:
            for step in steps[on + 1 : left + 1]:
                await self.step(pilot, app, step)
        for step in steps[left + 1 :]:
            verb, _, words = step.partition(" ")
            assert self.looks(app, words)[verb](), step

    def happen(self, step: str) -> None:
        """Something happens to a run, or is there from the beginning."""
        verb, _, words = step.partition(" ")
        engine = self.engine
        if words.startswith("answer ") or hasattr(FakeRun, verb):
            self.run = self.run or engine.add_run(RUN)
        match verb:
            case "run":
                (name,), options = arguments(words)
                self.run = engine.live.get(name) or engine.add_run(name, **options)
            case "times":
                count, _, step = words.partition(" ")
                for number in range(int(count)):
                    self.happen(step.replace("{n}", str(number)))
            case "no_profiles":
                engine.entries = []
            case "drop_profile":
                engine.entries = [one for one in engine.entries if one.name != words]
            case "profile":
                positional, named = arguments(words)
                source = named.pop("source", "yours")
                engine.entries.append(entry(profile(*positional, **named), engine.folder, source))
            case "broken":
                name, _, said = words.partition(" ")
                path = engine.folder / "broken.toml"
                engine.entries.append(ProfileEntry(name=name, path=path, source="here", profile=None, error=said))
            case "trouble":
                name, _, engine.troubles[name] = words.partition(" ")
            case "nodes":
                engine.nodes = tuple(words.split())
            case "finding":
                node, check, state, said = words.split(" ", 3)
                text, _, hint = said.partition(" | ")
                found = {"node": node, "check": check, "state": state, "text": text, "hint": hint}
                engine.findings.append(msgspec.convert(found, Finding))
            case "hold":
                setattr(self.run if words == "answers" else engine, f"hold_{words}", asyncio.Event())
            case "let":
                getattr(self.run if words == "answers" else engine, f"hold_{words}").set()
            case "error":
                which, _, said = words.partition(" ")
                text, _, hint = said.partition(" | ")
                kind = CheckError if which in ("launch_error", "check_error") else SupervisorError
                error: RankdeckError | None = None if text == "none" else kind(text, hint=hint or None)
                each = [error] * 1000 if error else []
                setattr(self.run if which == "answer" else engine, which, each if which == "attach_errors" else error)
            case "clean_away":
                del engine.live[RUN]
                self.run.break_connections()  # type: ignore[union-attr]
            case "set":
                name, _, constant = words.partition(" ")
                self.monkeypatch.setattr(name, ast.literal_eval(constant))
            case "env":
                self.monkeypatch.setenv(*words.split(" ", 1))
            case _:
                positional, named = arguments(words)
                getattr(self.run, verb)(*positional, **named)

    def looks(self, app: RankdeckApp, words: str) -> dict[str, Callable[[], bool]]:
        """What can be so, by the verb that says it."""
        number, _, counted = words.partition(" ")
        saved = texts(words) if words else []

        def text_in(id: str) -> str | None:
            """The text of a field in the form; None: it has no such field, or nothing has the cursor."""
            lines = [row.line.value for row in app.screen.query(FormRow) if row.field.id == id]
            return lines[0] if lines and app.focused is not None else None

        def line() -> str:
            """The line of the form that has the cursor."""
            row = app.focused and app.focused.parent
            return row.field.id if isinstance(row, FormRow) else ""

        return {
            "ascii": lambda: text_of(app).isascii(),
            "asked": lambda: self.run is not None and self.run.asked == requests(words),
            "at": lambda: type(app.screen).__name__ == words,
            "checks": lambda: self.engine.checks == int(words),
            "checks_closed": lambda: self.engine.checks_closed == int(words),
            "count": lambda: text_of(app).count(counted) == int(number),
            "cursor": lambda: str(app.screen.query_one(RankTable).cursor_rank) == words,
            "focus": lambda: app.screen.query_one(words).has_focus,
            "focused": lambda: app.focused is not None,
            "leave": lambda: type(app.screen).__name__ != words,
            "kept": lambda: self.engine.settings == ({tuple(number.split(".")): counted} if words else {}),
            "line": lambda: line() == words,
            "known": lambda: self.run is not None and run_screen(app).model.run == self.run.view,
            "launched": lambda: [one.name for one in self.engine.launched] == words.split(),
            "launches": lambda: len(self.engine.launched) == int(words),
            "left": lambda: not app.is_running,
            "parting": lambda: " ".join((app.parting or "").split()) == words,
            "runs": lambda: list(self.engine.live) == words.split(),
            "runs_on": lambda: app.is_running,
            "saved": lambda: [f"{one.name} {path.name if path else 'new'}" for one, path in self.engine.saved] == saved,
            "theme": lambda: app.theme == words,
            "trusted": lambda: [one.name for one in self.engine.trusted] == words.split(),
            "typed": lambda: [one.value for one in app.screen.query(Input)] == [words],
            "unwatched": lambda: self.run is not None and not self.run.subscribers,
            "value": lambda: text_in(number) == counted,
            "watched": lambda: self.run is not None and bool(self.run.subscribers),
        }

    async def step(self, pilot: Pilot[Any], app: RankdeckApp, step: str) -> None:
        """One key or look."""
        verb, _, words = step.partition(" ")
        looks = self.looks(app, words)
        match verb:
            case "see":
                await until_seen(pilot, *texts(words))
            case "gone":
                await until_gone(pilot, words)
            case "without":
                assert not [text for text in texts(words) if text in text_of(app)], step
            case "not_at":
                assert type(app.screen).__name__ != words
            case "press":
                await pilot.press(*words.split())
            case "type":
                await pilot.press(*["space" if letter == " " else letter for letter in words])
            case "paste":  # as a terminal does with bracketed paste
                app.post_message(events.Paste(value(words)))
            case "at_once":
                type_at_once(app, *words.split())
            case "go_to":
                next(row.line for row in app.screen.query(FormRow) if row.field.id == words).focus()
            case "double_click":
                selector, x, y = words.split()
                await pilot.double_click(selector, offset=(int(x), int(y)))
            case "pause":
                await pilot.pause()
            case "size":
                await pilot.resize_terminal(*map(int, words.split("x")))
            case "open":
                app.open_run(words)
            case _ if verb in looks:
                await until(pilot, looks[verb], step)
            case _:
                self.happen(step)


def requests(words: str) -> list[tuple[Any, ...]]:
    """Requests to a supervisor: `kill 1 9 4001; stop True`."""
    return [] if words == "nothing" else [tuple(arguments(request)[0]) for request in words.split("; ")]


@pytest.mark.parametrize("story", stories())
async def test_the_app_does_what_a_story_tells(story: Story, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    await Teller(FakeEngine(tmp_path), monkeypatch).tell(*story)
