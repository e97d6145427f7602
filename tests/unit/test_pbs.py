"""Tasks of a PBS job: their command line, the proof between their two ends, and why there is none."""

import contextlib
import queue
import re
import select
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import CheckError, ProfileError
from engine.core.failures.known import causes
from engine.core.failures.ssh import explain
from engine.core.plan.batch import submission_of, submit_argv
from engine.core.plan.batch.job import end_words, queue_words
from engine.core.plan.batch.pbs import parse_jobs, walltime_seconds
from engine.core.plan.plan import PlannedNode, Reach
from engine.core.plan.profile import PbsJob
from engine.launchers import LAUNCHERS, pbs, pbs_task, rsync
from engine.launchers.setup import with_setup
from engine.planning.batch import pbs as batch
from tests.support import entries, from_table, parse_profile, rows

SAID = rows("unit/pbs", "said")
"""Exit status and output of our program around pbs_tmrsh, from the source of OpenPBS, and what is told of them."""


def test_a_command_is_a_task_that_our_program_starts() -> None:
    argv = LAUNCHERS["pbs"]("gpu01", ["python3", "-c", "a b"], Reach())
    assert argv == [sys.executable, "-I", "-S", str(pbs.PROGRAM), "gpu01", "python3", "-c", "a b"]
    assert pbs.PROGRAM.is_file()
    assert pbs.argv("gpu01", ["python3"], Reach(setup="a"))[5:] == with_setup("a", ["python3"])
    with pytest.raises(ValueError, match="not a valid node name"):
        pbs.argv("-l", ["true"], Reach())


def test_rsync_reaches_a_node_by_a_task_too() -> None:
    argv = rsync.argv(PlannedNode(name="gpu01", transport="pbs", ranks=(0,)), "/data", Reach())
    assert argv[argv.index("--rsh") + 1].endswith(f"'{pbs.PROGRAM}'")
    assert argv[-2:] == ["/data/", "gpu01:/data/"]


@pytest.mark.parametrize(("status", "said", "words"), SAID)
def test_why_there_is_no_task_is_told(status: int, said: str, words: str) -> None:
    trouble = explain("gpu01", status=status, said=said, python="python9", setup=False, transport="pbs")
    assert words in trouble.text


def test_every_cause_is_shown() -> None:
    for cause in (one for one in causes() if one.speaker == "pbs"):
        assert any(re.search(cause.pattern, said, re.MULTILINE) for _, said, _ in SAID), cause.id


def test_tasks_need_a_job() -> None:
    text = 'schema = 1\nname = "a"\n[layout]\ntransport = "pbs"\n[recipe]\nscript = "a.py"\n'
    with pytest.raises(ProfileError, match="is pbs, and the profile names no job"):
        parse_profile(text, file="a.toml")


KEY = b"k" * pbs_task.SIZE


# --- the proof -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_right", [True, False])
def test_only_who_has_the_key_is_accepted_and_learns_that_the_other_has_it(is_right: bool) -> None:
    head, node = socket.socketpair()
    found: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    thread = threading.Thread(target=pbs_task.accepts, args=(head, KEY, found))
    thread.start()
    with head, node:
        if is_right:
            pbs_task.prove(node, KEY)
        else:
            with pytest.raises(ConnectionError):
                pbs_task.prove(node, b"x" * 32)
        thread.join()
    assert found.empty() != is_right


def test_a_listener_that_sends_back_what_it_gets_is_refused() -> None:
    head, node = socket.socketpair()

    def send_back() -> None:
        head.sendall(b"n" * 32)
        pbs_task.receive(head)
        head.sendall(pbs_task.receive(head))

    thread = threading.Thread(target=send_back)
    thread.start()
    with head, node:
        with pytest.raises(ConnectionError, match="it does not have the key"):
            pbs_task.prove(node, KEY)
        thread.join()


class Task:
    """A task that has not ended."""

    def poll(self) -> int | None:
        return None


def test_a_command_that_ends_at_once_is_heard() -> None:
    class Ending(Task):
        """Ends while this process is about to look for its end again."""

        def poll(self) -> int | None:
            if not select.select([link], [], [], 0)[0]:
                return None  # it was not greeted yet
            pbs_task.prove(link, KEY)  # now the command begins
            return 0  # and has ended

    with pbs_task.listener() as server, socket.create_connection(("127.0.0.1", server.getsockname()[1])) as link:
        found = pbs_task.wait_for(server, Ending(), KEY)  # type: ignore[arg-type]
        assert found is not None
        found.close()


def test_silent_connections_end_once_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pbs_task, "MOST_GUESTS", 2)
    with pbs_task.listener() as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.getsockname()[1])
        *silent, link = [stack.enter_context(socket.create_connection(address)) for _ in range(4)]
        thread = threading.Thread(target=pbs_task.prove, args=(link, KEY))
        thread.start()
        found = pbs_task.wait_for(server, Task(), KEY)  # type: ignore[arg-type]
        thread.join()
        assert found is not None
        found.close()
        for one in silent[:2]:
            one.settimeout(60)
            while one.recv(64):
                pass


def test_where_no_key_can_be_written_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert pbs_task.main(["gpu01", "true"]) == pbs_task.FAILED
    assert capsys.readouterr().err.startswith("rankdeck can't wait for a task: ")


def test_who_says_nothing_does_not_keep_others_waiting() -> None:
    with pbs_task.listener() as server:
        address = ("127.0.0.1", server.getsockname()[1])
        with socket.create_connection(address), socket.create_connection(address) as link:
            thread = threading.Thread(target=pbs_task.prove, args=(link, KEY))
            thread.start()
            found = pbs_task.wait_for(server, Task(), KEY)  # type: ignore[arg-type]
            thread.join()
            assert found is not None
            found.close()


# --- a job that is submitted ---------------------------------------------------------------------------------------------


def test_a_job_is_the_words_of_qsub_and_a_script() -> None:
    job = PbsJob(
        nodes=4, queue="gpuq", walltime="4:00:00", ncpus=64, ngpus=8, account="proj", options=("-l", "fs=home")
    )
    submission = submission_of(job, 8, name="4gpt", command=["/opt/a b/python", "in-job"])
    assert submit_argv(submission, "/runs/gpt-abcd", after="7.head") == [
        *("qsub", "-N", "r4gpt", "-l", "select=4:ncpus=64:mpiprocs=8:ngpus=8", "-l", "place=scatter", "-q", "gpuq"),
        *("-A", "proj", "-l", "walltime=4:00:00", "-r", "n", "-j", "oe", "-l", "fs=home"),
        *"-o /runs/gpt-abcd/job.out -W depend=afterany:7.head -- /runs/gpt-abcd/job.sh /runs/gpt-abcd".split(),
    ]
    assert submission.script.splitlines()[-1] == 'exec \'/opt/a b/python\' in-job "$1" >>"$1/job.log" 2>&1'


@from_table
def test_a_job_that_rankdeck_cannot_run_is_refused(table: str, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(f'schema = 1\nname = "a"\n[layout.pbs]\n{table}\n[recipe]\nscript = "a.py"\n', file="a.toml")
    assert words in str(caught.value)


@from_table
def test_a_walltime_is_told_in_seconds(text: str, seconds: int | None) -> None:
    assert walltime_seconds(text) == seconds


QSTAT = entries("unit/pbs", "qstat").encode()
"""The form is that of PBS's design document; a number may be text."""


def test_what_qstat_tells_is_told_in_words() -> None:
    jobs = parse_jobs(QSTAT)
    assert queue_words(jobs["1.head"]) == (
        "job 1.head waits: Not Running: Insufficient amount of resource: ncpus; expected to start Thu Nov 26 14:05:00 2026"
    )
    assert queue_words(jobs["2.head"]) == "job 2.head waits: it is held: qrls releases it"
    assert queue_words(jobs["3.head"]) == "job 3.head starts on gpu01,gpu02"
    ends = [end_words(number, jobs[number], scheduler="pbs") for number in ("4.head", "5.head", "6.head", "7.head")]
    assert ends == [
        "PBS's job 4.head has reached its time limit",
        "PBS's job 5.head was cancelled",
        "PBS's job 6.head has failed",
        "PBS's job 7.head has ended: qstat -xf 7.head",
    ]
    with pytest.raises(msgspec.MsgspecError):
        parse_jobs(b"qstat: odd")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (b'"comment": 7, "estimated": {"start_time": 1479277336}', "job 1 waits: 7; expected to start 1479277336"),
        (b'"comment": "caf\xe9"', "job 1 waits: caf\ufffd"),
    ],
)
def test_what_is_odd_in_the_answer_of_qstat_is_shown_as_it_is(attributes: bytes, words: str) -> None:
    job = parse_jobs(b'{"Jobs": {"1": {"job_state": "Q", ' + attributes + b"}}}")["1"]
    assert queue_words(job) == words


def test_many_runs_wait_once_for_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run_quickly(words: list[str], *_: object, **__: object) -> tuple[int, bytes, bytes]:
        asked.append(words)
        raise CheckError("qstat does not answer within 10 s")

    monkeypatch.setattr(batch, "run_quickly", run_quickly)
    monkeypatch.setattr(batch, "PATIENCE", 600.0)
    monkeypatch.setattr(batch, "_answers", {})
    monkeypatch.setattr(batch, "_silences", [], raising=False)
    for number in ("1.head", "2.head", "3.head"):
        with pytest.raises(CheckError, match="does not answer"):
            batch.job(number)
    assert len(asked) == 1
    monkeypatch.setattr(batch, "PATIENCE", 0.0)
    monkeypatch.setattr(batch, "run_quickly", lambda *_, **__: (0, QSTAT, b""))
    found = batch.job("3.head")
    assert found is not None
    assert found.state == "RUNNING"
