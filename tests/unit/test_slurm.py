"""Steps of a Slurm job: their command line, and what srun says if there is none. Recorded from Slurm 22.05."""

import asyncio
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.core.errors import ProfileError, SilentSlurmError
from engine.core.failures.known import causes
from engine.core.failures.ssh import explain
from engine.core.plan.batch import submission_of, submit_argv
from engine.core.plan.batch.job import end_words, queue_words
from engine.core.plan.batch.slurm import Partition, ending_state, parse_partitions, parse_queue, partition_rows
from engine.core.plan.document.reading import parse_with_places
from engine.core.plan.plan import PlannedNode, Reach
from engine.core.plan.profile import SlurmJob, to_toml_data
from engine.core.views.view import JobView
from engine.launchers import LAUNCHERS, rsync, slurm
from engine.launchers.setup import with_setup
from engine.planning.batch import slurm as jobs
from engine.supervisor import job
from tests.support import PATIENCE, entries, from_table, rows
from tests.unit.conftest import WriteCommand

REACH = Reach(slurm_job="1234")
NODE = PlannedNode(name="gpu01", transport="slurm", ranks=(0,))

SAID = rows("unit/slurm", "said")  # exit status and output of srun, and what is told of them


def test_a_command_is_a_step_that_waits_for_no_other_and_has_all_of_the_job() -> None:
    argv = LAUNCHERS["slurm"]("gpu01", ["python3", "-c", "a b"], REACH)
    assert argv[0] == "env"
    srun = argv[argv.index("srun") :]
    assert srun == [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--unbuffered"),
        *("--export=ALL", "--chdir=/", "--job-name=rankdeck", "--jobid=1234", "--nodelist=gpu01"),
        *("--", "python3", "-c", "a b"),
    ]
    assert "-uSLURM_CPUS_PER_TASK" in argv
    assert "SLURM_EXIT_ERROR=255" in argv


def test_shell_lines_run_before_the_command() -> None:
    argv = slurm.argv("gpu01", ["python3"], Reach(slurm_job="1", setup="module load cuda"))
    assert argv[argv.index("--") + 1 :] == with_setup("module load cuda", ["python3"])


def test_rsync_reaches_a_node_by_a_step_too() -> None:
    argv = rsync.argv(NODE, "/data", REACH)
    remote_shell = argv[argv.index("--rsh") + 1]
    assert remote_shell.endswith("'--jobid=1234' '--nodelist'")
    assert argv[-2:] == ["/data/", "gpu01:/data/"]


@pytest.mark.parametrize(("status", "said", "words"), SAID)
def test_why_there_is_no_step_is_told_from_what_srun_says(status: int, said: str, words: str) -> None:
    trouble = explain("gpu01", status=status, said=said, python="python9", setup=False, transport="slurm", job="1234")
    assert words in trouble.text
    assert trouble.final == ("has ended" in trouble.text or "still waits" in trouble.text)


def test_every_cause_is_shown() -> None:
    for cause in (one for one in causes() if one.speaker == "slurm"):
        assert any(re.search(cause.pattern, said, re.MULTILINE) for _, said, _ in SAID), cause.id


def test_steps_need_a_job() -> None:
    with pytest.raises(ProfileError, match=r"is slurm, and the profile names no job"):
        parse_with_places(
            'schema = 1\nname = "a"\n[layout]\ntransport = "slurm"\n[recipe]\nscript = "a.py"\n', file="a.toml"
        )


# --- a job that is submitted -------------------------------------------------------------------------------------------


def test_a_job_is_the_words_of_sbatch_and_a_script() -> None:
    job = SlurmJob(
        nodes=4, partition="gpu", time="4:00:00", gres="gpu:8", account="proj", options=("--exclusive",), warn=300
    )
    submission = submission_of(job, 8, name="gpt", command=["/opt/a b/python", "in-job"])
    assert submit_argv(submission, "/runs/gpt%1-abcd") == [
        *("sbatch", "--parsable", "--job-name=gpt", "--nodes=4", "--ntasks-per-node=8", "--partition=gpu"),
        *("--time=4:00:00", "--gres=gpu:8", "--account=proj", "--no-requeue", "--signal=B:USR1@300"),
        "--exclusive",
        *("--output=/runs/gpt%%1-abcd/job.log", "--open-mode=append", "/runs/gpt%1-abcd/job.sh", "/runs/gpt%1-abcd"),
    ]
    spared = submission_of(SlurmJob(nodes=4, spares=1), 8, name="gpt", command=["in-job"])
    assert spared.options[1:] == ("--nodes=5", "--ntasks-per-node=8", "--no-requeue", "--no-kill")
    assert "--dependency=afterany:7" in submit_argv(submission, "/runs/a", after="7")
    assert submission.script.splitlines()[-1] == "exec '/opt/a b/python' in-job \"$1\""


@from_table
def test_a_job_that_rankdeck_cannot_run_is_refused(table: str, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_with_places(
            f'schema = 1\nname = "a"\n[layout.slurm]\n{table}\n[recipe]\nscript = "a.py"\n', file="a.toml"
        )
    assert words in str(caught.value)


def test_a_profile_with_a_job_is_written_as_it_was_read() -> None:
    text = 'schema = 1\nname = "a"\n[layout.slurm]\n[recipe]\nscript = "a.py"\n'
    profile, _ = parse_with_places(text, file="a.toml")
    assert profile.layout.slurm == SlurmJob()
    assert to_toml_data(profile)["layout"] == {"slurm": {}}
    assert profile.layout.words == "slurm 1 node"


QUEUE = entries("unit/slurm", "queue")


def test_why_a_job_waits_is_told_in_words() -> None:
    jobs = parse_queue(QUEUE)
    assert list(jobs) == ["12", "13", "14", "15", "19", "20", "21", "22", "16", "17", "18"]
    words = {number: queue_words(job) for number, job in jobs.items()}
    assert words["12"] == (
        "job 12 waits: it is next, and waits for nodes (Resources); expected to start 2026-11-25 14:05; "
        "a shorter layout.slurm.time may let it start earlier"
    )
    assert "are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:gpu[01-02])" in words["13"]
    assert words["14"] == "job 14 waits: the limit of its QOS is reached (QOSMaxJobsPerUserLimit)"
    assert words["15"] == "job 15 waits: you hold it (JobHeldUser); scontrol release 15"
    assert (
        "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)" in words["19"]
    )
    assert "more than its QOS allows for a job, so it can't start (QOSMaxCpuPerJobLimit)" in words["20"]
    assert "more than your account allows on a node, so it can't start (AssocMaxGRESPerNode)" in words["21"]
    assert words["22"].startswith("job 22 is suspended on gpu01")
    assert words["16"] == "job 16 waits: New|Reason"
    assert words["17"] == "job 17 starts on gpu[01-02]"


SINFO = entries("unit/slurm", "sinfo")


def test_what_is_free_is_counted_from_what_sinfo_says() -> None:
    gpu, cpu = parse_partitions(SINFO)
    assert gpu == Partition(
        name="gpu",
        default=True,
        up=True,
        time="1-00:00:00",
        nodes=4,
        free=1,
        gpus=32,
        free_gpus=13,
        cpus=256,
        free_cpus=88,
    )
    assert (cpu.name, cpu.up, cpu.nodes, cpu.free, cpu.gpus, cpu.free_cpus) == ("cpu", False, 1, 0, 0, 0)
    assert partition_rows([gpu, cpu])[1:] == [
        ("gpu (default)", "up", "1-00:00:00", "1 of 4", "13 of 32", "88 of 256"),
        ("cpu", "down", "infinite", "0 of 1", "-", "0 of 64"),
    ]


@from_table
def test_whether_a_job_that_has_got_sigterm_goes_on(said: str, ends: list[str | bool] | None) -> None:
    assert ending_state(said) == (None if ends is None else tuple(ends))


def test_why_a_job_is_over_is_told_in_words() -> None:
    assert end_words("18", parse_queue(QUEUE)["18"]) == "Slurm's job 18 has reached its time limit"
    assert end_words("99", None) == "Slurm's job 99 has ended: sacct -j 99"
    assert "back into the queue" in end_words("12", parse_queue(QUEUE)["12"])


def test_a_job_that_has_recorded_when_it_ends_asks_slurm_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("ID=109", "PARTITION=main", "START_TIME=1000", "END_TIME=4600"):
        monkeypatch.setenv(*f"SLURM_JOB_{word}".split("="))

    async def refuse(*_: object) -> None:
        raise AssertionError("Slurm is asked")

    monkeypatch.setattr(job, "_ask", refuse)
    seen: list[JobView | None] = []
    run = SimpleNamespace(plan=SimpleNamespace(reach=Reach(slurm_job="109")), job=None)
    run.note_change = lambda: seen.append(run.job)

    monkeypatch.setattr(job, "LONGEST", float("inf"))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(job.Job(cast("Any", run), lambda: None).watch(), 0.05))
    assert seen == [JobView(job="109", partition="main", ends_at=4600.0)]
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(1000 + 365 * 24 * 3600))
    assert job.recorded_view("109") == JobView(job="109", partition="main")
    assert job.recorded_view("110") is None, "another job has the nodes"
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert job.recorded_view("109") is None, "an older Slurm"


SQUEUE = entries("unit/slurm", "squeue")


def test_why_a_job_is_over_is_asked_again_of_a_busy_controller_and_of_a_job_that_is_completing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(SQUEUE)
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(job, "LONGEST", PATIENCE)
    monkeypatch.setattr(job, "PAUSE", 0.01)
    monkeypatch.setattr(job, "PATIENCE", 0.5)  # an answer that takes longer on a busy machine is asked for again
    assert end_words("18", asyncio.run(job.find_end("18"))) == "Slurm's job 18 lost a node"


CONTROLLER = entries("unit/slurm", "controller")


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        ("down", "squeue fails: slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        ("silent", "Slurm's controller does not answer"),
    ],
)
def test_where_no_controller_answers_the_last_answer_is_told_with_its_time(
    tmp_path: Path, write_command: WriteCommand, monkeypatch: pytest.MonkeyPatch, controller: str, words: str
) -> None:
    (tmp_path / "slurm.conf").write_text("# ClusterName=old\n clustername=lab\n")
    monkeypatch.setenv("SLURM_CONF", f"{tmp_path}/slurm.conf")
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    for name in ("PATIENCE", "LONGEST"):
        monkeypatch.setattr(jobs, name, PATIENCE)
    (squeue := write_command("squeue", CONTROLLER)).with_suffix(".is").write_text(controller)
    asked = squeue.with_suffix(".asked")
    monkeypatch.setattr(jobs, "DEADLINE", 0.5 if controller == "silent" else PATIENCE)
    for _ in range(3):  # commands that follow each other
        with pytest.raises(SilentSlurmError, match=re.escape(words)):
            jobs.job("7")
    if controller == "down":
        assert asked.read_text() == "squeue --local\n", "asked once"
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    monkeypatch.setattr(jobs, "DEADLINE", PATIENCE)
    squeue.with_suffix(".is").write_text("up")
    assert list(jobs.queue()) == ["7"]
    assert (tmp_path / "squeue-lab.json").exists()
    monkeypatch.setattr(jobs, "PATIENCE", PATIENCE)
    squeue.with_suffix(".is").write_text(controller)
    monkeypatch.setattr(socket, "gethostname", lambda: "login2")
    assert list(jobs.queue()) == ["7"], "an answer of these seconds is used again, on each login node"
    monkeypatch.setattr(jobs, "LONGEST", 0.0)
    monkeypatch.setattr(jobs, "DEADLINE", 0.5 if controller == "silent" else PATIENCE)
    with pytest.raises(SilentSlurmError) as silent:
        jobs.job("7")
    told = r"; it was last asked at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, when job 7 waits"
    assert re.match(re.escape(words) + told, silent.value.message)
    assert "when" not in jobs.silence_words("8")
