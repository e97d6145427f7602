"""In which part a supervisor died, as the next one learns it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from engine.core.run import events as ev
from engine.core.run.parts import Part
from engine.supervisor import run as supervised
from engine.supervisor.crash_marks import CrashMarks
from engine.supervisor.run import ContainingTasks, SupervisedRun, every
from engine.supervisor.runner import Runner
from tests.played_run import play_run

HEALTH, FILES, EXPLANATIONS, OUTPUT, TRACES = (
    Part.HEALTH_WATCH,
    Part.FILE_WATCH,
    Part.EXPLANATIONS,
    Part.NUMBERS,
    Part.TRACES,
)

Death = Callable[[CrashMarks], object]
"""What a supervisor did when it died: nothing of it is undone, as after a signal that ends the process."""


def in_part(part: Part) -> Death:
    return lambda marks: marks.inside(part).__enter__()


def in_thread(part: Part) -> Death:
    return lambda marks: marks.inside_thread(part).__enter__()


def at_event(number: int) -> Death:
    return lambda marks: marks.replays(number)


def idle(marks: CrashMarks) -> None:
    """It died in no part."""


def after(path: Path, *deaths: Death) -> CrashMarks:
    """The marks of a supervisor whose predecessors died so, one after the other."""
    for death in deaths:
        death(CrashMarks(path, path))
    return CrashMarks(path, path)


@pytest.mark.parametrize(
    ("deaths", "parts", "event"),
    [
        ([], [], None),
        ([in_part(HEALTH)], [], None),
        ([in_part(HEALTH), in_part(HEALTH)], [HEALTH], None),
        ([in_part(HEALTH), in_part(FILES)], [], None),
        ([in_part(HEALTH), idle, in_part(HEALTH)], [], None),
        ([in_part(FILES), in_part(HEALTH), in_part(HEALTH)], [HEALTH], None),
        ([in_thread(TRACES), in_thread(TRACES)], [TRACES], None),
        ([in_thread(TRACES), in_part(TRACES)], [TRACES], None),
        ([at_event(7), at_event(7)], [], 7),
        ([at_event(0), at_event(0)], [], 0),
        ([at_event(7), at_event(8)], [], None),
        ([at_event(7), in_part(HEALTH), at_event(7)], [], None),
    ],
)
def test_a_part_in_which_two_supervisors_in_a_row_died_is_known(
    tmp_path: Path, deaths: list[Death], parts: list[Part], event: int | None
) -> None:
    marks = after(tmp_path / "marks", *deaths)
    assert (marks.parts, marks.event) == (parts, event)


def test_the_innermost_part_counts(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        marks.inside(Part.FRONT_ENDS).__enter__()
        marks.inside(EXPLANATIONS).__enter__()

    assert after(tmp_path / "marks", death, death).parts == [EXPLANATIONS]


def test_a_part_that_was_left_does_not_count(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        with marks.inside(OUTPUT):
            pass
        with pytest.raises(KeyError), marks.inside(OUTPUT):
            raise KeyError
        with marks.inside_thread(TRACES):
            pass

    assert after(tmp_path / "marks", death, death).parts == []


def test_a_part_that_ends_the_interpreter_counts(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        with pytest.raises(SystemExit), marks.inside(OUTPUT):
            raise SystemExit(3)

    assert after(tmp_path / "marks", death, death).parts == [OUTPUT]


def test_a_supervisor_that_has_lived_for_long_begins_a_new_row(tmp_path: Path) -> None:
    def long_life(marks: CrashMarks) -> None:
        marks.forget()
        marks.inside(HEALTH).__enter__()

    assert after(tmp_path / "marks", in_part(HEALTH), long_life).parts == []
    assert after(tmp_path / "marks", in_part(HEALTH), long_life, in_part(HEALTH)).parts == [HEALTH]


@pytest.mark.parametrize("data", [b"", b"x", bytes(200), b"\xff" * 200])
def test_a_file_that_is_none_of_ours_says_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "marks").write_bytes(data)
    marks = CrashMarks(tmp_path / "marks", tmp_path / "marks")
    assert (marks.parts, marks.event) == ([], None)


def test_what_stands_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "marks").symlink_to(tmp_path / "other")
    CrashMarks(tmp_path / "marks", tmp_path / "marks").inside(OUTPUT).__enter__()
    assert (tmp_path / "other").read_text() == "mine"


def test_the_file_is_private_and_goes_with_a_supervisor_that_ends_as_it_should(tmp_path: Path) -> None:
    marks = CrashMarks(tmp_path / "marks")
    assert (tmp_path / "marks").stat().st_mode & 0o777 == 0o600
    marks.close()
    assert list(tmp_path.iterdir()) == []


def test_every_step_of_a_part_is_marked_and_what_it_waits_for_is_not(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    seen: list[bool] = []

    def is_inside() -> bool:
        """Whether a supervisor that died now, after one that died in the part, would have died in it too."""
        now = tmp_path / "now"
        now.write_bytes(path.read_bytes())
        return CrashMarks(now, now).parts == [HEALTH]

    async def work() -> None:
        seen.append(is_inside())
        await asyncio.sleep(0)
        seen.append(is_inside())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(is_inside())
            raise

    async def main() -> None:
        in_part(HEALTH)(CrashMarks(path, path))
        marks = CrashMarks(path, path)
        task = asyncio.ensure_future(marks.run(HEALTH, work()))
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(is_inside())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert seen == [True, False, True, False, False, True]


def test_a_thread_does_not_take_the_mark_of_the_event_loop_away(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        marks.inside(HEALTH).__enter__()

        def other() -> None:
            with marks.inside_thread(TRACES):
                pass

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert after(tmp_path / "marks", death, death).parts == [HEALTH]


def test_a_part_that_is_left_out_does_not_run(tmp_path: Path) -> None:
    looks: list[str] = []

    async def main(run: SupervisedRun) -> None:
        for part in (HEALTH, FILES):
            work = asyncio.ensure_future(run.keep(part, partial(every, 0, partial(looks.append, part))))
            for _ in range(5):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])

    with play_run(tmp_path) as runner:
        runner.handle(ev.PartLeftOut(at=5.0, part=HEALTH))
        asyncio.run(main(runner.run))
    assert set(looks) == {FILES}


def test_failures_in_a_row_are_counted_until_a_supervisor_has_lived_for_long(tmp_path: Path) -> None:
    path = tmp_path / "marks"

    def fail(marks: CrashMarks) -> None:
        marks.count_failures(marks.failures + 1)

    assert after(path, fail, fail).failures == 2
    assert after(path, fail, in_part(HEALTH)).failures == 3, "one that is killed does not end the row"
    assert after(path, lambda marks: marks.forget()).failures == 0
    assert after(path, *[fail] * 300).failures == 255


async def test_tasks_that_fail_again_end_no_other_ones() -> None:
    told: list[tuple[str, Exception]] = []

    async def fail() -> None:
        raise error

    async def succeed() -> str:
        await asyncio.sleep(0)
        return "done"

    error = KeyError("defect")
    async with ContainingTasks(lambda *failure: told.append(failure)) as tasks:
        tasks.create_task(fail(), name="the link to a")
        other = tasks.create_task(succeed())
    assert told == [("the link to a", error)]
    assert other.result() == "done"


def test_a_restart_by_the_user_tries_parts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "PAUSE", 0)
    looks: list[str] = []

    async def main(runner: Runner) -> None:
        work = asyncio.ensure_future(runner.run.keep(HEALTH, partial(every, 0, partial(looks.append, HEALTH))))
        for wanted in (False, True):
            for _ in range(20):
                await asyncio.sleep(0)
            assert (bool(looks), runner.ingest.reads_output) == (wanted, wanted)
            runner.handle(ev.RestartRequested(at=6.0, by="alice"))
        work.cancel()
        await asyncio.wait([work])

    with play_run(tmp_path) as runner:
        for part in (HEALTH, OUTPUT):
            runner.handle(ev.PartLeftOut(at=5.0, part=part))
        asyncio.run(main(runner))


def test_a_part_that_two_threads_have_left_one_after_the_other_does_not_count(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        first, second = marks.inside_thread(TRACES), marks.inside_thread(TRACES)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)

    assert after(tmp_path / "marks", death, death).parts == []


def test_a_part_in_which_one_of_two_threads_still_is_counts(tmp_path: Path) -> None:
    def death(marks: CrashMarks) -> None:
        first = marks.inside_thread(TRACES)
        first.__enter__()
        in_thread(TRACES)(marks)
        first.__exit__(None, None, None)

    assert after(tmp_path / "marks", death, death).parts == [TRACES]
