"""The runs that are kept on this machine: made, found by name, and listed."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import msgspec

from engine.core.errors import CheckError, RankdeckError, RunNotFoundError, SupervisorError
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from engine.runs.paths import RunPaths, private_folder, runs_folder
from engine.runs.record import read_summary, socket_of, summary_of

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters of a run's id: none that is mistaken for another when read aloud or typed from a screen."""


def all_runs() -> list[RunPaths]:
    """Every run that is kept, newest first."""
    try:
        entries = [entry for entry in os.scandir(runs_folder()) if not entry.name.startswith(".")]  # those are standbys
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(launched, Path(entry.path)) for entry in folders if (launched := _launched_at(Path(entry.path)))]
    return [RunPaths(folder) for _, folder in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _launched_at(folder: Path) -> float:
    """When a run was launched: its plan is written once, just before. 0 for a folder that is no run."""
    try:
        return RunPaths(folder).plan.stat().st_mtime
    except OSError:
        return 0.0


def find_run(word: str) -> RunPaths:
    """The run of that id, of that unique beginning of an id, or, for `-`, the newest.

    Raises:
        RunNotFoundError: none, or several.
    """
    runs = all_runs()
    if word == "-" and runs:
        return runs[0]
    exact = [run for run in runs if run.run == word]
    found = exact or [run for run in runs if word and run.run.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(run.run for run in found[:5])
        raise RunNotFoundError(f"{word!r} may be any of {len(found)} runs", hint=f"type more of it: {some}")
    hint = (
        "rankdeck ps --all lists them" if runs else "no run was ever launched here; rankdeck launch PROFILE starts one"
    )
    raise RunNotFoundError(f"there is no run {word!r}", hint=hint)


def new_run(name: str) -> RunPaths:
    """Makes the folder of a new run; its id is the profile's name and four letters."""
    try:
        folder = private_folder(runs_folder())
        while True:
            mark = "".join(secrets.choice(_ALPHABET) for _ in range(4))
            try:
                (folder / f"{name}-{mark}").mkdir(mode=0o700)
            except FileExistsError:
                continue
            paths = RunPaths(folder / f"{name}-{mark}")
            try:
                _ = paths.socket
            except RankdeckError:
                paths.folder.rmdir()
                raise
            return paths
    except OSError as error:
        raise CheckError(
            f"can't keep a run in {runs_folder()}: {error.strerror}", hint="point RANKDECK_HOME elsewhere"
        ) from None


def summaries() -> list[RunSummary]:
    """The lines of `rankdeck ps`: runs that go on or wait for somebody, then those that have ended; newest first."""
    found = [summary for paths in all_runs() if (summary := summarise(paths))]
    return sorted(found, key=lambda summary: summary.state in ENDED_WORDS)


def summarise(paths: RunPaths) -> RunSummary | None:
    """The line of `rankdeck ps` for a run; None where its files make none."""
    summary = read_summary(paths)
    if summary is None:
        try:
            from engine.runs.replay import stored_snapshot  # most lists need summaries only

            summary = summary_of(stored_snapshot(paths).run)
        except (SupervisorError, OSError):
            return None
    reachable = summary.state in ENDED_WORDS or _listens(paths)
    reason = summary.reason if reachable else "its supervisor is gone; attach starts a new one"
    return msgspec.structs.replace(summary, reachable=reachable, reason=reason)


def _listens(paths: RunPaths) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(socket_of(paths)) == 0
