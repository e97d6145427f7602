"""Creates, finds and lists the runs of this machine."""

import contextlib
import os
import re
import secrets
import socket
import time

import msgspec

from engine.core.errors import CheckError, RankdeckError, RunNotFoundError, SupervisorError
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from engine.runs.index import Index, Stamp, stamp_of
from engine.runs.paths import RunPaths, private_folder, runs_folder
from engine.runs.record import host_elsewhere, read_plan, read_submitted, read_summary, socket_of, summary_of

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # letters of a run's id, without those that look or sound alike

_RUN_NAME = re.compile(rf"[^.].*-[{_ALPHABET}]{{4}}", re.DOTALL)

LAUNCH_TIME = 60.0  # seconds within which a launch writes the plan, even on a slow file system


def all_runs() -> list[RunPaths]:
    """Every run, newest first, also one whose plan is lost."""
    runs = [RunPaths(runs_folder() / name) for name in _names()]
    found = [(launched, paths) for paths in runs if (launched := _launched_at(paths)) is not None]
    return [paths for _, paths in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _names() -> list[str]:
    """The folders of runs, without standbys."""
    try:
        with os.scandir(runs_folder()) as entries:
            return [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _launched_at(paths: RunPaths) -> float | None:
    """When a run was launched, from the time of its plan, which is written once; of its folder if the plan is lost. None: it is not a run."""
    with contextlib.suppress(OSError):
        return paths.plan.lstat().st_mtime
    with contextlib.suppress(OSError):  # it is being removed
        changed = paths.folder.stat().st_mtime
        if (paths.supervisor_log.exists() or time.time() - changed > LAUNCH_TIME) and _has_lost_its_plan(paths):
            return changed
    return None


def _has_lost_its_plan(paths: RunPaths) -> bool:
    """Whether a folder without a plan is one of a run by its name and content: its launch failed, or somebody has removed the plan."""
    files = (paths.plan, paths.profile, paths.journal, paths.lock, paths.supervisor, paths.supervisor_log)
    names = {name.removesuffix(".partial") for name in os.listdir(paths.folder)}
    return bool(_RUN_NAME.fullmatch(paths.run)) and (not names or any(file.name in names for file in files))


def find_run(word: str) -> RunPaths:
    """The run with that id or unique prefix of an id, or else in the job of that number; `-`: the newest. If there are several, returns the active
    one. Raises RunNotFoundError: none, or several."""
    if _RUN_NAME.fullmatch(word) and _launched_at(exact := RunPaths(runs_folder() / word)) is not None:
        return exact
    runs = all_runs()
    if word == "-" and runs:
        return runs[0]
    found = [run for run in runs if word and run.run.startswith(word)]
    what = "is the beginning of {} run ids"
    if not found and word[:1].isdecimal():
        found, what = [run for run in runs if word in _jobs_of(run)], "is the job of {} runs"
    active = found if len(found) == 1 else [run for run in found if summarise(run).state not in ENDED_WORDS]
    if len(active) == 1:
        return active[0]
    if found:
        some = ", ".join(run.run for run in found[:5])
        raise RunNotFoundError(f"{word!r} {what.format(len(found))}", hint=f"type the id of one, or more of it: {some}")
    hint = (
        "rankdeck ps --all lists them" if runs else "no run was ever launched here; rankdeck launch PROFILE starts one"
    )
    raise RunNotFoundError(f"there is no run {word!r}", hint=hint)


def _jobs_of(paths: RunPaths) -> set[str]:
    """The jobs that a run is in or waits for."""
    if (submitted := read_submitted(paths)) is not None:
        return {submitted.job, submitted.next}
    with contextlib.suppress(SupervisorError):
        return {read_plan(paths).slurm_job}
    return set()


def new_name(name: str) -> str:
    """A name with four letters that may be new."""
    return f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(4))}"


def new_run(name: str, run: str = "") -> RunPaths:
    """Makes the folder of a new run; its id is the profile's name and four letters, unless `run` is the id."""
    try:
        folder = private_folder(runs_folder())
        while True:
            paths = RunPaths(folder / (run or new_name(name)))
            try:
                paths.folder.mkdir(mode=0o700)
            except FileExistsError:
                if run:
                    raise
                continue
            try:
                _ = paths.socket
            except RankdeckError:
                paths.folder.rmdir()
                raise
            return paths
    except OSError as error:
        hint = "set RANKDECK_HOME to another folder"
        raise CheckError(f"can't create a run in {runs_folder()}: {error.strerror}", hint=hint) from None


def summaries() -> list[RunSummary]:
    """The lines of `rankdeck ps`: active runs, then ended ones; newest first."""
    return sorted((summary for _, summary in listed_runs()), key=lambda summary: summary.state in ENDED_WORDS)


def listed_runs() -> list[tuple[Stamp, RunSummary]]:
    """The line of each run and the stamp of its file, newest first."""
    index, found, runs = Index("runs", RunSummary), [], runs_folder()
    for name in _names():
        stamp = stamp_of(f"{runs}/{name}/summary.json")
        summary = index.find(name, stamp)
        if summary is None and _launched_at(paths := RunPaths(runs / name)) is not None:
            summary = summarise(paths)
            if summary == read_summary(paths) and summary.state in ENDED_WORDS:
                index.keep(name, stamp, summary)
        if summary is not None:
            found.append((stamp, summary))
    index.save()
    return sorted(found, key=lambda pair: pair[1].launched_at, reverse=True)


def summarise(paths: RunPaths) -> RunSummary:
    """The line of `rankdeck ps` for a run. If its files can't be read, its state is `unreadable`, and the reason says why."""
    summary = read_summary(paths)
    listens = (summary is None or summary.state not in (*ENDED_WORDS, "queued")) and _listens(paths)
    if summary is None or (summary.state not in ENDED_WORDS and not listens and _is_older(paths)):
        try:
            from engine.runs.replay import stored_snapshot  # most lists need summaries only

            summary = summary_of(stored_snapshot(paths).run)
        except SupervisorError as error:
            if summary is None:
                return _unreadable(paths, error)
    if summary.state in ENDED_WORDS or summary.state == "queued" or listens:
        return msgspec.structs.replace(summary, reachable=True)
    if paths.job.exists():  # its job can be asked from anywhere
        return msgspec.structs.replace(summary, reachable=True)
    if host := host_elsewhere(paths):
        reason = f"its supervisor is on {host}: ssh -t {host} rankdeck attach {paths.run}"
        return msgspec.structs.replace(summary, reachable=False, reason=reason, host=host, elsewhere=True)
    try:
        read_plan(paths)
    except SupervisorError as error:  # no supervisor can continue it
        return _unreadable(paths, error)
    reason = "its supervisor is gone; attach starts a new one"
    return msgspec.structs.replace(summary, reachable=False, reason=reason)


def _unreadable(paths: RunPaths, error: SupervisorError) -> RunSummary:
    return RunSummary(
        run=paths.run,
        name=paths.run.rpartition("-")[0],
        state="unreadable",
        world_size=0,
        backend="",
        launched_at=_launched_at(paths) or 0.0,
        reason=f"{error.message}; rankdeck clean {paths.run} removes it",
        reachable=False,
        host=socket.gethostname(),
    )


def _is_older(paths: RunPaths) -> bool:
    """Whether the stored line is older than the journal: the disk may have been full when it was due."""
    try:
        return paths.summary.stat().st_mtime_ns < paths.journal.stat().st_mtime_ns
    except OSError:
        return False


def _listens(paths: RunPaths) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        try:
            return probe.connect_ex(socket_of(paths)) == 0
        except (OSError, ValueError, RankdeckError):  # its path is too long, or somebody has written anything for it
            return False
