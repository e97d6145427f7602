"""Starts runs of the queue, one after the other. One process at a time does so: it holds a lock, which the process that launches inherits.

Whoever gets the lock knows that the starter of an entry that is `starting` is dead. Its run has begun, or it is started again with the same id.
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from msgspec.structs import replace

from engine.client.launch import begin_launch
from engine.client.starting import start_supervisor
from engine.core.errors import RankdeckError, SupervisorError
from engine.core.plan.document.reading import parse_with_places
from engine.core.run.state import ENDED_WORDS
from engine.core.sweeps.queue import MOST_TRIES, VISIBLE, Active, Entry, Gpu, Needs, Queue, Wait, needs_of, waits
from engine.core.views.view import RunSummary
from engine.installed import COMMAND
from engine.linux.locks import is_locked, try_lock
from engine.node.programs import gpus
from engine.planning.recipes import choices
from engine.runs.listing import LAUNCH_TIME, new_name, summaries
from engine.runs.lock import is_taken
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.queue.file import change_queue, queue_file, read_queue
from engine.runs.record import read_plan, read_whereabouts
from engine.runs.replay import has_begun

WATCH_PERIOD = 5.0  # seconds between two looks at GPUs of other processes
DRIVER_TIME = 20.0  # seconds for a driver to tell its GPUs


def main(word: str = "") -> int:
    """Entry point: `start-queued` starts what may start; with `wait`, it waits for another process that does so; with a number, it launches that
    entry. Returns the exit status. One process stays as long as entries wait for GPUs of other processes."""
    if word.isdecimal():
        return _launch(int(word))
    watch = None
    while True:
        with open(queue_file().with_suffix(".starter"), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if watch is None and word != "wait" else 0))
            except BlockingIOError:
                return 0
            if watch is None:
                _revive()
            while (claimed := _claim()) is not None:
                _start(claimed, lock.fileno())
            waiting = looks(queue).values() if _wants_gpus(queue := read_queue()) else ()
            if not any(
                one.is_watched or not one.reason for one in waiting
            ):  # no entry waits for another process, and none may start
                if watch is not None:
                    os.close(watch)  # before another process looks, which leaves its work to this one
                return 0
            if watch is None:
                watch = try_lock(queue_file().with_suffix(".watch"))
        if watch is None:
            return 0  # another one stays
        time.sleep(WATCH_PERIOD)


def looks(queue: Queue) -> dict[int, Wait]:
    """Why each queued entry waits now; see `waits`."""
    return _looks(queue, _gpus(queue))


def _looks(queue: Queue, found: list[Gpu] | None) -> dict[int, Wait]:
    why = waits(queue, active_runs(summaries()), cores(), found or ())
    if found is None:
        silent = Wait("the driver of the GPUs does not answer", is_watched=True)
        why |= {one.number: silent for one in queue.entries if one.number in why and one.needs.gpus}
    return why


def _wants_gpus(queue: Queue) -> bool:
    return any(one.state == "queued" and one.needs.gpus for one in queue.entries)


def _gpus(queue: Queue) -> list[Gpu] | None:
    """The GPUs of this machine, if an entry waits for some; empty: there is no driver; None: it does not answer. Not called where the queue is
    locked: a call into a driver may never return."""
    if not _wants_gpus(queue):
        return []
    asked = subprocess.Popen([sys.executable, "-I", "-S", gpus.__file__], stdout=subprocess.PIPE)
    try:
        said = asked.communicate(timeout=DRIVER_TIME)[0]
    except subprocess.TimeoutExpired:
        asked.kill()
        return None
    if asked.returncode != 0:
        return None
    return [Gpu(str(number), uuid, is_used) for number, (uuid, is_used) in enumerate(json.loads(said or b"[]"))]


def _revive() -> None:
    """Starts supervisors of runs that go on without one, because it was killed with its guard: what waits for their end would wait for ever."""
    for summary in summaries():
        is_lost = summary.state not in ENDED_WORDS and not summary.reachable and not summary.elsewhere
        if is_lost and _has_processes(paths := RunPaths(runs_folder() / summary.run), summary):
            with contextlib.suppress(RankdeckError):
                if read_whereabouts(paths) is not None:  # else its first one is about to start
                    start_supervisor(paths)


def _claim() -> tuple[Entry, Queue] | None:
    """The next entry, which is `starting` now; None: nothing may start."""
    found: list[Entry] = []
    told = _gpus(read_queue())

    def claim(queue: Queue) -> Queue:
        for one in queue.entries:
            if one.state != "starting":
                continue
            if has_begun(paths := RunPaths(runs_folder() / one.run)) and paths.plan.exists():
                queue = queue.without(one.number)
            elif one.tries >= MOST_TRIES:
                reason = f"its start was killed {one.tries} times"
                queue = queue.changed(replace(one, state="failed", run="", reason=reason))
        entry = next((one for one in queue.entries if one.state == "starting"), None)
        if entry is None:
            free = {number: wait.gpus for number, wait in _looks(queue, told).items() if not wait.reason}
            entry = next((replace(one, gpus=free[one.number]) for one in queue.entries if one.number in free), None)
        if entry is None:
            return queue
        while not entry.run or (entry.state == "queued" and (runs_folder() / entry.run).exists()):
            entry = replace(entry, run=new_name(entry.name))
        found.append(replace(entry, state="starting", tries=entry.tries + 1))
        return queue.changed(found[0])

    queue = change_queue(claim)
    return (found[0], queue) if found else None


def _start(claimed: tuple[Entry, Queue], lock: int) -> None:
    """Launches an entry in its own folder and environment. If that process is killed, the entry stays `starting`, and the next look finds it."""
    entry, queue = claimed
    place = queue.places[entry.place]
    argv = [sys.executable, "-P", str(COMMAND), "start-queued", str(entry.number)]
    environment = dict(one.partition(b"=")[::2] for one in place.environment)
    if entry.gpus:
        environment |= {VISIBLE.encode(): ",".join(entry.gpus).encode(), b"CUDA_DEVICE_ORDER": b"PCI_BUS_ID"}
    try:
        done = subprocess.run(
            argv, env=environment, cwd=place.folder, pass_fds=[lock], capture_output=True, check=False
        )
        status, said = done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip()
    except OSError as error:  # the folder was removed
        status, said = 1, f"{error.strerror}: {place.folder.decode(errors='replace')}"
    if status == 0:
        change_queue(lambda now: now.without(entry.number))
    elif status > 0:
        reason = said.rpartition("\n")[2] or f"its start ended with {status}"
        change_queue(lambda now: now.changed(replace(entry, state="failed", run="", reason=reason)))


def _launch(number: int) -> int:
    """Launches an entry. Prints why that failed, in one line. Returns the exit status."""
    entry = read_queue().find(number)
    if entry is None or entry.state != "starting":
        return 0
    paths = RunPaths(runs_folder() / entry.run)
    try:
        if not paths.plan.exists():  # else a starter has died behind that
            shutil.rmtree(paths.folder, ignore_errors=True)
            profile, places = parse_with_places(entry.profile, file=f"entry {number} of the queue", choices=choices())
            begin_launch(profile, places, cold=entry.cold, swept=entry.swept, run=entry.run)
        try:
            start_supervisor(paths)
        except SupervisorError:
            if not (is_taken(paths) or has_begun(paths)):  # it has one, which a starter that has died has started
                raise
    except (RankdeckError, OSError) as error:
        os.write(1, str(error).replace("\n", "; ").encode(errors="replace"))  # standard output may take ASCII only
        return 1
    return 0


def cores() -> int:
    """Cores that ranks on this machine may use."""
    return len(os.sched_getaffinity(0))


def active_runs(runs: Sequence[RunSummary]) -> list[Active]:
    """Those of this user's runs that have not ended, and what they have for themselves."""
    found = []
    for summary in runs:
        if summary.state not in ENDED_WORDS and _has_processes(paths := RunPaths(runs_folder() / summary.run), summary):
            needs = Needs()
            with contextlib.suppress(SupervisorError):
                needs = needs_of(read_plan(paths), is_here=summary.host == socket.gethostname())
            found.append(Active(run=summary.run, needs=needs, sweep=summary.sweep))
    return found


def _has_processes(paths: RunPaths, summary: RunSummary) -> bool:
    """Whether a run that has not ended goes on: its supervisor answers, or its agent waits for another; a restart of the machine leaves neither. A lock
    that is tried might be missing to a process that starts, so those of a new run are left alone."""
    if summary.reachable or summary.elsewhere or time.time() - summary.launched_at < LAUNCH_TIME:
        return True
    for lock in paths.nodes.glob("*/agent.lock"):
        with contextlib.suppress(OSError):
            if is_locked(lock):
                return True
    return False
