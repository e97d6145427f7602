"""Creates, finds and lists the runs of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from pathlib import Path

import msgspec

from engine.core.errors import CheckError, RankdeckError, RunNotFoundError, SupervisorError
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from engine.runs.paths import RunPaths, private_folder, runs_folder
from engine.runs.record import host_elsewhere, read_summary, socket_of, summary_of

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters of a run's id, without those that look or sound alike."""

_RUN_NAME = re.compile(rf"[^.].*-[{_ALPHABET}]{{4}}", re.DOTALL)

LAUNCH_TIME = 60.0
"""Seconds within which a launch writes the plan, even on a slow file system."""


def all_runs() -> list[RunPaths]:
    """Every run, newest first."""
    try:
        entries = [entry for entry in os.scandir(runs_folder()) if not entry.name.startswith(".")]  # without standbys
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(launched, Path(entry.path)) for entry in folders if (launched := _launched_at(Path(entry.path)))]
    return [RunPaths(folder) for _, folder in sorted(found, key=lambda pair: pair[0], reverse=True)]


def unplanned_runs() -> list[tuple[float, RunPaths]]:
    """Folders of runs without a plan, because their launch failed or somebody has removed it; with the time of their last change.

    Folders that are not rankdeck's are not among them.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(runs_folder()):
            paths = RunPaths(Path(entry.path))
            with contextlib.suppress(OSError):  # a link, or it is being removed
                changed = entry.stat(follow_symlinks=False).st_mtime
                has_begun = paths.supervisor_log.exists() or time.time() - changed > LAUNCH_TIME
                if has_begun and _is_unplanned(paths):
                    found.append((changed, paths))
    return found


def _is_unplanned(paths: RunPaths) -> bool:
    """Whether a folder is one of a run by its name and content, and has no plan. Raises OSError if it is no folder."""
    if not _RUN_NAME.fullmatch(paths.run) or paths.plan.exists():
        return False
    files = (paths.plan, paths.profile, paths.journal, paths.lock, paths.supervisor, paths.supervisor_log)
    names = {name.removesuffix(".partial") for name in os.listdir(paths.folder)}
    return not names or any(file.name in names for file in files)


def _launched_at(folder: Path) -> float:
    """When a run was launched, from the time of its plan, which is written once. 0: the folder is not a run."""
    try:
        return RunPaths(folder).plan.stat().st_mtime
    except OSError:
        return 0.0


def find_run(word: str) -> RunPaths:
    """The run with that id or unique prefix of an id; `-`: the newest. Of several, the one that is active.

    Raises:
        RunNotFoundError: none, or several.
    """
    if _RUN_NAME.fullmatch(word) and _launched_at(runs_folder() / word):
        return RunPaths(runs_folder() / word)
    runs = all_runs()
    if word == "-" and runs:
        return runs[0]
    found = [run for run in runs if word and run.run.startswith(word)]
    active = found if len(found) == 1 else [run for run in found if _is_active(run)]
    if len(active) == 1:
        return active[0]
    if found:
        some = ", ".join(run.run for run in found[:5])
        raise RunNotFoundError(
            f"{word!r} is the beginning of {len(found)} run ids", hint=f"type more characters: {some}"
        )
    hint = (
        "rankdeck ps --all lists them" if runs else "no run was ever launched here; rankdeck launch PROFILE starts one"
    )
    raise RunNotFoundError(f"there is no run {word!r}", hint=hint)


def _is_active(paths: RunPaths) -> bool:
    summary = summarise(paths)
    return summary is not None and summary.state not in ENDED_WORDS


def new_run(name: str) -> RunPaths:
    """Makes the folder of a new run; its id is the profile's name and four letters."""
    try:
        folder = private_folder(runs_folder())
        while True:
            paths = RunPaths(folder / f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(4))}")
            try:
                paths.folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            try:
                _ = paths.socket
            except RankdeckError:
                paths.folder.rmdir()
                raise
            return paths
    except OSError as error:
        raise CheckError(
            f"can't create a run in {runs_folder()}: {error.strerror}", hint="set RANKDECK_HOME to another folder"
        ) from None


def summaries() -> list[RunSummary]:
    """The lines of `rankdeck ps`: active runs, then ended ones; newest first."""
    found = [summary for paths in all_runs() if (summary := summarise(paths))]
    return sorted(found, key=lambda summary: summary.state in ENDED_WORDS)


def summarise(paths: RunPaths) -> RunSummary | None:
    """The line of `rankdeck ps` for a run; None if its files can't be read."""
    summary = read_summary(paths)
    listens = (summary is None or summary.state not in (*ENDED_WORDS, "queued")) and _listens(paths)
    if summary is None or (summary.state not in ENDED_WORDS and not listens and _is_older(paths)):
        try:
            from engine.runs.replay import stored_snapshot  # most lists need summaries only

            summary = summary_of(stored_snapshot(paths).run)
        except (SupervisorError, OSError):
            if summary is None:
                return None
    if summary.state in ENDED_WORDS or summary.state == "queued" or listens:
        return msgspec.structs.replace(summary, reachable=True)
    if paths.job.exists():  # its job can be asked from anywhere
        return msgspec.structs.replace(summary, reachable=True)
    if host := host_elsewhere(paths):
        reason = f"its supervisor is on {host}: ssh -t {host} rankdeck attach {paths.run}"
        return msgspec.structs.replace(summary, reachable=False, reason=reason, host=host, elsewhere=True)
    reason = "its supervisor is gone; attach starts a new one"
    return msgspec.structs.replace(summary, reachable=False, reason=reason)


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
