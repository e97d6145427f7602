"""Slurm ends a job on purpose, or signals one that goes on. In an allocation, where the supervisor is on the login node, and in a
submitted run, where it is in the job."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.runs.paths import RunPaths
from engine.supervisor.lifetime.abandon import end_supervisor
from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm, begin_again
from tests.support import Deck, entries, wait_gone, wait_until

SAVE = entries("slurm/ends", "save")  # a script whose rank 0 writes a checkpoint for 2 s at SIGTERM

ENDLESS = entries("slurm/ends", "endless")
"""A script whose rank 0 has a whole checkpoint of step 2, and writes another one from SIGTERM on, until it is killed."""

PLAIN, STAY = entries("slurm/ends", "plain"), entries("slurm/ends", "stay")
"""Scripts without a handler, and with some that only print."""

BATCH = ("sbatch", "--parsable", "--nodes=2", "--output=/dev/null")


class Launch:
    """Launches a run of two ranks on each of two nodes."""

    def __init__(self, form: str, slurm: Slurm, deck: Deck, write_profile: WriteProfile) -> None:
        self._form, self._slurm, self._deck, self._write_profile = form, slurm, deck, write_profile
        self.run = self.job = ""

    def __call__(self, script: Path, partition: str = "main", on_preempt: str = "", **launch: Any) -> None:
        """Waits until every rank has made steps."""
        if self._form == "submitted":
            job = {"on_preempt": on_preempt} if on_preempt else {}
            layout: dict[str, Any] = {"slurm": {"nodes": 2, "ranks_per_node": 2, "partition": partition, **job}}
        else:
            self.job = self._slurm.run(
                *BATCH, "--export=NONE", f"--partition={partition}", "--wrap", "exec sleep infinity"
            )
            wait_until(lambda: self._slurm.state(self.job) == "RUNNING", what="the job runs")
            layout = {"slurm": int(self.job), "transport": "slurm"}
        profile = self._write_profile(script, 2, layout=layout, launch={"lease": 5, **launch})
        self.run = self._deck.launch(profile)
        for rank in range(4):
            self._deck.wait_log(self.run, rank, b"step 5\n")
        self.job = self.job or json.loads((self._deck.folder(self.run) / "job.json").read_text())["job"]


@pytest.fixture(params=["allocation", "submitted"])
def launch(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, request: pytest.FixtureRequest
) -> Iterator[Launch]:
    yield Launch(request.param, slurm, rankdeck, write_profile)
    slurm.cancel_everything()


URGENT = (*BATCH, "--partition=urgent", "--wrap", "sleep 1")

WAYS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "scancel": ("main", ("scancel", "{job}"), "was cancelled"),
    "time limit": ("main", ("scontrol", "update", "jobid={job}", "endtime=now+2"), "has reached its time limit"),
    "preemption": ("main", URGENT, "was preempted by another job"),
    "preemption with GraceTime": ("graced", URGENT, "was preempted by another job"),
}
"""The partition of a job, the command at which Slurm ends it, and what the run says then."""


@pytest.mark.parametrize("way", WAYS)
def test_what_was_saved_when_slurm_ends_a_job_is_told(
    slurm: Slurm, rankdeck: Deck, launch: Launch, write_script: WriteScript, way: str, work: Path
) -> None:
    partition, words, said = WAYS[way]
    launch(write_script("save.py", SAVE), partition)
    pids = rankdeck.pids(launch.run)
    slurm.run(*(word.format(job=launch.job) for word in words))
    status = rankdeck.wait_state(launch.run, "failed")
    wait_gone(*pids)
    (file,) = (work / "ckpt").iterdir()
    assert zipfile.ZipFile(file).testzip() is None
    assert f"checkpoint of step {file.stem.removeprefix('step_')} was saved" in status["saved"]["words"]
    shown = rankdeck("status", launch.run).stdout
    assert f"Slurm's job {launch.job} {said}" in shown
    assert status["saved"]["words"] in " ".join(shown.split())


@pytest.mark.parametrize(
    ("launch", "supervisor"),
    [("allocation", "lives"), ("allocation", "is killed"), ("submitted", "is killed by Slurm")],
    indirect=["launch"],
)
def test_a_save_that_slurm_cuts_off_is_told_and_set_aside(
    slurm: Slurm, rankdeck: Deck, launch: Launch, write_script: WriteScript, supervisor: str, work: Path
) -> None:
    launch(write_script("endless.py", ENDLESS), on_torn="set-aside")
    paths = RunPaths(rankdeck.folder(launch.run))
    slurm.run("scancel", "--signal=TERM", launch.job)
    wait_until(lambda: b"CheckpointFolderSeen" in paths.journal.read_bytes(), what="the save is seen")
    wait_until(lambda: len(list((work / "ckpt").iterdir())) == 2, what="it is the second one")
    if supervisor == "is killed":
        end_supervisor(paths)
    slurm.run("scancel", launch.job)
    status = rankdeck.wait_state(launch.run, "failed")
    (torn,) = (work / "ckpt").glob("*.torn")
    words = f"ckpt/{torn.stem} was being written when attempt 0 ended, and is now {torn.name}; ckpt/step_2.pt is whole"
    assert words in status["saved"]["words"]


@pytest.mark.parametrize("launch", ["submitted"], indirect=True)
def test_the_next_attempt_of_a_requeued_job_does_not_find_the_checkpoint_that_slurm_has_cut_off(
    slurm: Slurm, rankdeck: Deck, launch: Launch, write_script: WriteScript, work: Path
) -> None:
    launch(write_script("endless.py", ENDLESS), on_preempt="requeue", on_torn="set-aside")
    paths = RunPaths(rankdeck.folder(launch.run))
    slurm.run("scancel", "--signal=TERM", launch.job)
    wait_until(lambda: b"CheckpointFolderSeen" in paths.journal.read_bytes(), what="the save is seen")
    wait_until(lambda: len(list((work / "ckpt").iterdir())) == 2, what="it is the second one")
    begin_again(slurm, launch.job)
    wait_until(lambda: b"found" in read(paths.log(1, 0, "out")), what="the next attempt has begun")
    (torn,) = (work / "ckpt").glob("*.torn")
    found = read(paths.log(1, 0, "out")).decode().splitlines()[0]
    assert found == f"found {sorted(['step_2.pt', torn.name])}"


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def test_ends_of_ranks_with_their_job_are_no_failures(
    slurm: Slurm, rankdeck: Deck, launch: Launch, write_script: WriteScript
) -> None:
    launch(write_script("plain.py", PLAIN), on_failure="restart")
    slurm.run("scancel", launch.job)
    status = rankdeck.wait_state(launch.run, "failed")
    assert {rank["state"] for rank in status["ranks"]} == {"stopped"}
    assert status["attempt"] == 0
    assert "no checkpoint of this run was found" in status["saved"]["words"]


def test_a_job_that_is_only_signalled_goes_on(
    slurm: Slurm, rankdeck: Deck, launch: Launch, write_script: WriteScript, work: Path
) -> None:
    launch(write_script("stay.py", STAY))
    pids = rankdeck.pids(launch.run)
    for name in ("TERM", "USR1", "CONT"):
        slurm.run("scancel", f"--signal={name}", launch.job)
        for rank in range(4):
            rankdeck.wait_log(launch.run, rank, f"got SIG{name}\n".encode())
    assert rankdeck.pids(launch.run) == pids
    (work / "finish").touch()
    assert rankdeck.wait_state(launch.run, "succeeded")["attempt"] == 0
