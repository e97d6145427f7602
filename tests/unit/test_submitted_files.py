"""The state of a submitted run, read from its files before its supervisor has written anything; and messages of sbatch."""

import shlex
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import CheckError, NoAnswerError, RunNotFoundError
from engine.core.plan.batch.job import Submission
from engine.gate import LAUNCHED
from engine.planning import batch
from engine.planning.batch import slurm, submit
from engine.runs.listing import find_run
from engine.runs.paths import RunPaths
from engine.runs.record import Submitted, read_plan
from engine.runs.replay import is_queued, stored_snapshot
from tests.ended_run import ended_run
from tests.unit.conftest import WriteCommand


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_run_is_queued_until_its_first_event_is_written(tmp_path: Path, has_journal: bool) -> None:
    paths = ended_run(tmp_path)
    paths.journal.unlink()
    paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0)))
    if has_journal:
        paths.journal.touch()  # as a supervisor that has just begun
    assert is_queued(paths)
    assert stored_snapshot(paths).run.state == "queued"


def test_a_run_is_found_by_the_number_of_its_job_unless_an_id_begins_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    paths = ended_run(tmp_path / "runs")
    paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0, next="18")))
    assert [find_run(word).run for word in ("17", "18")] == [paths.run] * 2
    paths.folder.with_name("17-run-abcd").mkdir()
    (tmp_path / "runs/17-run-abcd/plan.json").write_bytes(paths.plan.read_bytes())
    assert find_run("17").run == "17-run-abcd"
    with pytest.raises(RunNotFoundError, match="there is no run '19'"):
        find_run("19")


# --- what sbatch says --------------------------------------------------------------------------------------------------------

SUBMISSION = Submission(options=("--nodes=1",), script="#!/bin/sh\n")
TOLD = "printf 'sbatch: You have 3 hours left.\\nsbatch: error: Ask Ann.\\n' >&2"  # by job_submit.lua


@pytest.fixture
def to_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    paths = ended_run(tmp_path / "runs")
    paths.plan.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_plan(paths), submission=SUBMISSION)))
    return paths


def test_all_that_a_site_says_about_a_job_is_told(to_submit: RunPaths, write_command: WriteCommand) -> None:
    write_command("sbatch", f"{TOLD}; echo '17;there'")
    assert submit(read_plan(to_submit), to_submit) == ("17", "You have 3 hours left. / Ask Ann.")
    write_command("sbatch", f"{TOLD}; echo 'sbatch: Job 9 to start at noon' >&2")
    assert slurm.test(SUBMISSION, LAUNCHED) == "Job 9 to start at noon; You have 3 hours left. / Ask Ann."
    write_command("sbatch", f"{TOLD}; echo 'sbatch: error: Batch job submission failed: Unspecified error' >&2; exit 1")
    for ask in (lambda: submit(read_plan(to_submit), to_submit), lambda: slurm.test(SUBMISSION, LAUNCHED)):
        with pytest.raises(CheckError) as refused:
            ask()
        whole = "You have 3 hours left. / Ask Ann. / Batch job submission failed: Unspecified error"
        assert refused.value.message == f"sbatch fails: {whole}"


def test_a_job_is_found_although_sbatch_did_not_answer(
    to_submit: RunPaths, write_command: WriteCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(*_: object, **__: object) -> str:
        raise NoAnswerError("sbatch does not answer within 20 s")

    monkeypatch.setattr(batch, "answer", give_up)
    write_command("squeue", f"echo '16|other.sh'; echo 17'|'{shlex.quote(str(to_submit.folder))}/job.sh RUN")
    assert submit(read_plan(to_submit), to_submit).job == "17"
    to_submit.job.write_text('{"job": "17", "at": 1.0}')  # which ran before
    with pytest.raises(NoAnswerError) as silent:
        submit(read_plan(to_submit), to_submit)
    assert "may be in the queue all the same" in (silent.value.hint or "")
