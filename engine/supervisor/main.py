"""The supervisor's process: takes the run's lock, serves, and ends with the run.

It has a session of its own, so neither Ctrl-C nor a closed terminal reaches it. It prints one line for the process that started it:
`ready`, or an error.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.core.errors import RankdeckError
from engine.core.metrics.series import final_values
from engine.core.run.state import finished
from engine.core.views.view import RunView
from engine.linux.files import open_regular
from engine.linux.processes import outlive_signals
from engine.node.login import in_job, leave_session
from engine.node.titles import show_title
from engine.runs.ends.shared_memory import sweep_shared_memory
from engine.runs.ends.tidying import remove_needless
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.queue.file import wake_starter
from engine.runs.record import place_here, read_plan, runtime_files, write_summary
from engine.supervisor.journal import Journal
from engine.supervisor.lifetime.guard import Guard
from engine.supervisor.lifetime.guard_process import GIVEN_UP, READY
from engine.supervisor.log import first_words, note
from engine.supervisor.nodes.bridge import Bridge
from engine.supervisor.nodes.library import library_name
from engine.supervisor.run import SupervisedRun, Watch, look_regularly
from engine.supervisor.runner import Runner
from engine.supervisor.server import Server
from engine.supervisor.snapshots import Snapshots
from engine.supervisor.standby.waiting import become_supervisor_of, wait_for_run
from engine.supervisor.watches.early_stop import EarlyStopWatch
from engine.supervisor.watches.files import FileWatch
from engine.supervisor.watches.health import HealthWatch
from engine.supervisor.watches.imports import ImportWatch
from engine.supervisor.watches.patience import STORE_PERIOD, HoldWatch, JoinWatch, RejoinWatch, StoreWatch

NEWS = ("state", "activity", "attempt", "generation", "alive", "failure", "stall", "saved", "ended_at")
"""Fields of a run for which its summary is written at once."""

PROGRESS_PERIOD = 5.0  # seconds between two summaries that differ only in the progress
ALIVE_PERIOD = 20.0  # seconds between two summaries of which nothing differs, outside of jobs: other hosts see that the run goes on
SAVE_PERIOD = 30.0  # Seconds between two saved copies of the curves. Newer data is read again from the ranks' files.
SAVE_SHARE = 0.02  # largest share of time for saving: with thousands of ranks it takes a second


class GivenUpError(RankdeckError):
    """Many supervisors in a row have died, and a defect has ended this one: a guard starts no other one."""


async def supervise(paths: RunPaths, *, restart_by: str | None, bridge: Bridge | None = None) -> None:
    """Supervises a run to its end.

    Args:
        paths: Paths of the run, whose plan exists.
        restart_by: who wants to restart a run that has ended, or None.
        bridge: an open connection to the agent of the first node, or None.

    Raises:
        GivenUpError: a defect ends this supervisor, and the guard starts no other one. A command may start one in any case.
    """
    guard = Guard(paths)
    try:
        await _supervise(paths, guard, restart_by, bridge)
    except Exception as error:
        if guard.is_needless and not _may_go_away(error):
            guard.release()
            raise GivenUpError(
                f"{guard.deaths} supervisors of {paths.run} have died in a row, and no other one is started",
                hint=f"rankdeck attach {paths.run} tries again, rankdeck stop --now {paths.run} ends the run without one",
            ) from error
        raise


def _may_go_away(error: BaseException) -> bool:
    """Whether the cause of an exception may go away: a full disk, little memory, a damaged file."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_may_go_away, error.exceptions))
    return isinstance(error, RankdeckError | OSError | MemoryError | msgspec.MsgspecError)


async def _supervise(paths: RunPaths, guard: Guard, restart_by: str | None, bridge: Bridge | None) -> None:
    plan, journal = read_plan(paths), Journal(paths.journal)
    tasks = asyncio.TaskGroup()
    runner = Runner(paths, plan, journal, tasks, bridge)
    run, ingest = runner.run, runner.ingest
    snapshots = Snapshots(run, ingest)
    server = Server(runner, snapshots)
    files, imports = FileWatch(run, journal), ImportWatch(run, ingest)
    with contextlib.suppress(OSError, RankdeckError):  # of a killed supervisor, maybe in another login's folder
        for path in runtime_files(paths, of_agent=False):
            path.unlink(missing_ok=True)
    guard.start_after_death()
    await server.listen()
    outlive_signals()
    if not in_job():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.terminate)
    async with tasks:
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "reading the output of ranks": ingest.run,
            "telling front ends what changes": server.keep_fresh,
            "the watch of the socket": server.keep_listening,
            "recording what was launched": runner.origins.keep,
            "saving curves": partial(_save, runner, snapshots),
            **({"the time limit of the job": runner.agents.job.watch} if runner.agents.job.number else {}),
        }
        watches: dict[str, Watch] = {
            "the watch of rejoins": RejoinWatch(run, ingest),
            "the watch of health": HealthWatch(run, ingest, runner.questions),
            "the watch of early stops": EarlyStopWatch(run, ingest),
            "the watch of ranks that join": JoinWatch(run, ingest),
            "the watch of runs that hold": HoldWatch(run, runner.orders),
            "the watch of files": files,
            "the watch of trackers' files": runner.events,
            "the watch of imports": imports,
        }
        parts |= {part: partial(look_regularly, watch) for part, watch in watches.items()}
        parts["the watch of the store"] = partial(look_regularly, StoreWatch(run, ingest), STORE_PERIOD)
        chores = [tasks.create_task(run.keep(part, work)) for part, work in parts.items()]
        runner.start(restart_by)
        with contextlib.suppress(OSError):  # the process that started this one may be gone
            print(READY, flush=True)  # noqa: T201
        _close_starter()
        chores.append(tasks.create_task(run.keep("the guard", guard.keep)))
        await run.ended.wait()
        with _goes_on():
            await runner.wait_closed()
        with _goes_on():
            await files.wait_written()
        for chore in chores:
            chore.cancel()
    await _finish(runner, snapshots, server, imports)
    journal.close()
    guard.release()
    with _goes_on():
        remove_needless(paths)
    with _goes_on():
        wake_starter(waits=True)


async def _finish(runner: Runner, snapshots: Snapshots, server: Server, imports: ImportWatch) -> None:
    """Reads and writes what is left at the end of a run, after its watches have ended."""
    run, ingest = runner.run, runner.ingest
    with _goes_on():
        await runner.origins.record()
    with _goes_on():
        await runner.events.finish()
    with _goes_on():
        ingest.drain(finished(run.state))
    with _goes_on():
        imports.look(time.time())
    _save_quietly(run, ingest.save)
    with _goes_on():
        await server.close()
    with _goes_on():
        metrics = final_values(ingest.series.dump())
        _save_quietly(run, lambda: write_summary(run.paths, snapshots.run_view, metrics))
    with _goes_on():
        sweep_shared_memory()


async def stand_by(paths: RunPaths) -> None:
    """Waits for a run, then supervises it to its end. `paths`: Paths of the temporary folder that replaces the run's meanwhile."""
    found = await wait_for_run(paths)
    if found is not None:
        run, bridge = found
        become_supervisor_of(run)
        await supervise(run, restart_by=None, bridge=bridge)


@contextlib.contextmanager
def _goes_on() -> Iterator[None]:
    """Goes on if something fails when the run has ended: the next supervisor would have nothing to do but to fail there too."""
    try:
        yield
    except Exception:  # noqa: BLE001 - a defect
        note(traceback.format_exc())


def _close_starter() -> None:
    """Closes the pipe to the process that started this one, which may be gone, or wait for its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


async def _save(runner: Runner, snapshots: Snapshots) -> None:
    """Saves the summary for `ps` soon after a change, and the curves regularly."""
    written: RunView | None = None
    due, told, is_in_job = time.monotonic() + SAVE_PERIOD, float("-inf"), place_here() is not None
    numbers_due = 0.0
    while True:
        run = snapshots.run_view
        is_news = written is None or any(getattr(run, name) != getattr(written, name) for name in NEWS)
        period = ALIVE_PERIOD if run == written and not is_in_job else PROGRESS_PERIOD  # a job may be suspended
        if (is_news or time.monotonic() - told >= period) and _save_quietly(
            runner.run, partial(write_summary, runner.run.paths, run)
        ):
            written, told = run, time.monotonic()
            if is_in_job and told >= numbers_due and _save_quietly(runner.run, snapshots.save_numbers):
                numbers_due = told + (time.monotonic() - told) / SAVE_SHARE
        await asyncio.sleep(1)
        if (began := time.monotonic()) >= due:
            _save_quietly(runner.run, runner.ingest.save)
            due = time.monotonic() + max(SAVE_PERIOD, (time.monotonic() - began) / SAVE_SHARE)


def _save_quietly(run: SupervisedRun, save: Callable[[], None]) -> bool:
    """Saves something, and returns whether that was possible: a full disk must not end a run."""
    try:
        save()
    except OSError as error:
        run.note_disk_trouble(error)
    except ValueError as error:
        note(f"can't save: {error}")
    else:
        return True
    return False


def main(folder: str, restart_by: str | None = None) -> int:
    """Entry point: `supervise FOLDER [RESTART_BY]`. Returns the exit status."""
    paths = RunPaths(Path(folder))
    return _run("supervisor", paths, lambda: supervise(paths, restart_by=restart_by))


def main_early() -> int:
    """Entry point: `supervise`. Waits for the folder of a run on standard input, with everything imported. Returns the exit status."""
    library_name()
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 0
    folder = json.loads(line)
    log = open_regular(RunPaths(Path(folder)).supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 2)):
        os.dup2(source, target)
        os.close(source)
    return main(folder)


def main_standby(folder: str) -> int:
    """Entry point: `standby FOLDER`. Returns the exit status."""
    paths = RunPaths(Path(folder))
    return _run("standby", paths, lambda: stand_by(paths))


def _run(role: str, paths: RunPaths, work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Does the work of a supervisor, with the lock of its folder. Returns the exit status."""
    if os.fork():  # so that the parent of the process that was started has no child to reap
        os._exit(0)
    show_title(role, paths.run if role == "supervisor" else "")
    leave_session()  # before it starts any process
    try:
        take_lock(paths)  # until this process ends
        asyncio.run(work())
    except GivenUpError as error:
        note(f"{''.join(traceback.format_exception(error))}{error.message}; {error.hint}")
        said = GIVEN_UP
    except (RankdeckError, OSError, msgspec.MsgspecError) as error:
        note("".join(traceback.format_exception(error)))
        said = str(error)
    except Exception as error:  # noqa: BLE001 - a defect
        note("".join(traceback.format_exception(error)))
        said = f"a defect of the supervisor: {first_words(error)}"
    else:
        return 0
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
    return 1
