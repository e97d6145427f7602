"""The root cause among several ranks, and logs of whole jobs."""

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands import diagnose
from engine.core.errors import UsageError
from engine.core.failures.collectives import Wait
from engine.core.failures.diagnosis import Explanation, explain
from engine.core.failures.launcher_log import read_log
from engine.core.failures.verdict import MAX_EXPLAINED, Verdict, Witness, find_verdict
from tests.support import calls_of, from_table, rows

FAILURES = Path(__file__).resolve().parents[1] / "data" / "failures"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34201."
TIMED_OUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
)
STORE_GONE = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed."


def raised(message: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    step()\n{message}\n'


def failed(rank: int, message: str, order: int = 0, status: int = 1) -> Witness:
    return Witness(rank=rank, output=raised(message) if message else "", failed=True, status=status, order=(order,))


def alive(rank: int) -> Witness:
    return Witness(rank=rank, output="step 3\n", failed=False)


def witness(rank: int, what: str, order: int = 0) -> Witness:
    known = {"closed": CLOSED, "timed out": TIMED_OUT, "store gone": STORE_GONE}
    if what in ("alive", "ended"):
        return alive(rank) if what == "alive" else Witness(rank=rank, output="", failed=False, status=0)
    if what.startswith("stopped in "):
        return Witness(rank=rank, output=raised(known.get(what[11:], what[11:])), failed=False)
    return failed(rank, "", order, -9) if what == "killed" else failed(rank, known.get(what, what), order)


# --- who is to blame -------------------------------------------------------------------------------------------------


@from_table
def test_one_of_several_ranks_is_to_blame(told: list[list[Any]], expected: dict[str, object]) -> None:
    """Each rank is told of by its number, what it said or what became of it, and the order of its end."""
    verdict = find_verdict([witness(*one) for one in told])
    assert verdict is not None
    found = {name: getattr(verdict, name) for name in expected}
    assert {name: list(one) if isinstance(one, tuple) else one for name, one in found.items()} == expected


@pytest.mark.parametrize(
    ("enqueued", "late"), [((9, 9, 8, 9), 2), ((9, 9, 9, 7), 3), ((4, 9, 9, 9), 0)], ids=lambda value: str(value)
)
def test_the_rank_that_the_watchdog_has_behind_is_the_one(enqueued: tuple[int, ...], late: int) -> None:
    def said(rank: int, last: int) -> str:
        return (
            f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={last}, OpType=ALLREDUCE, "
            "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: {last} "
            f"PG status: last enqueued work: {last}, last completed work: {last - 1}\n"
        )

    told = [
        Witness(rank=rank, output=said(rank, last), failed=True, status=-6, order=(rank,))
        for rank, last in enumerate(enqueued)
    ]
    verdict = find_verdict(told)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (late, "N12")


def test_nothing_failed_is_no_verdict() -> None:
    assert find_verdict([alive(0), alive(1)]) is None
    assert find_verdict([]) is None


def test_of_a_thousand_failures_a_few_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [failed(rank, f"ValueError: shard {rank}", rank) for rank in range(1000)]
    explained: list[object] = []

    def counted(*arguments: Any) -> Explanation:
        explained.append(arguments)
        return explain(*arguments)

    monkeypatch.setattr("engine.core.failures.verdict.explain", counted)
    verdict = find_verdict(told)
    assert len(explained) <= 2 * (MAX_EXPLAINED + 1)
    assert verdict is not None
    assert verdict.rank == 0
    assert verdict.followed[-1].startswith(f"{999 - MAX_EXPLAINED} other ranks failed too: ")


def test_what_was_recorded_of_collectives_says_whom_ranks_waited_for():
    late = Wait(sentence="rank 2 has not called barrier #3 of default_pg; ranks 0, 1, 3 wait in it", late=(2,))
    for words, cause in ((TIMED_OUT, "G2"), (CLOSED, "G1")):
        verdict = find_verdict([failed(0, words), failed(1, words, 1), alive(2), alive(3)], [late])
        assert verdict is not None
        assert (verdict.rank, verdict.headline, verdict.cause) == (2, late.sentence, cause)
        assert late.sentence not in verdict.followed


def test_a_rank_that_failed_by_itself_is_the_cause_whoever_waited_for_it():
    late = Wait(sentence="rank 2 has not called barrier #3 of default_pg; ranks 0, 1 wait in it", late=(2,))
    verdict = find_verdict([failed(0, TIMED_OUT, 2), failed(1, TIMED_OUT, 1), failed(2, "KeyError: 'x'", 0)], [late])
    assert verdict is not None
    assert verdict.headline == "rank 2 raised KeyError"
    assert verdict.followed[-1] == late.sentence


# --- logs ------------------------------------------------------------------------------------------------------------

TAGGED = rows("unit/verdict", "tagged")


@pytest.mark.parametrize(("form", "_"), TAGGED, ids=[name for _, name in TAGGED])
def test_the_tags_of_launchers_name_the_rank(form: str, _: str) -> None:
    lines = [form.format(line) for line in raised("ValueError: bad batch").splitlines()]
    other = [form.replace("3", "1").format(line) for line in raised(CLOSED).splitlines()]
    mixed = [line for pair in zip(other, lines, strict=True) for line in pair]
    verdict = find_verdict(read_log("\r\n".join(mixed)))
    assert verdict is not None
    assert (verdict.rank, verdict.detail) == (3, "ValueError: bad batch")
    assert verdict.followed == ("1 other rank lost the connection to it: 1",)


def test_a_local_rank_of_another_node_is_known_by_its_global_one() -> None:
    text = "[default1]:[rank9]: warm\n[default1]:" + "\n[default1]:".join(raised("ValueError: x").splitlines())
    verdict = find_verdict(read_log(text))
    assert verdict is not None
    assert verdict.rank == 9


def test_under_torchrun_a_task_of_srun_is_a_node() -> None:
    lines = (FAILURES / "torchrun-exception.txt").read_text().splitlines()
    verdict = find_verdict(read_log("\n".join(f"1: {line}" for line in lines)))
    assert verdict is not None
    assert (verdict.rank, verdict.detail) == (3, "ValueError: bad batch")
    assert verdict.followed[0] == "2 other ranks lost the connection to it: 0, 2"


def test_a_log_that_breaks_off_in_torchruns_list_still_tells() -> None:
    text = (FAILURES / "torchrun-sigkill.txt").read_text()
    verdict = find_verdict(read_log(text[: text.index("  error_file")]))
    assert verdict is not None
    assert (verdict.rank, verdict.headline) == (2, "rank 2 was killed by SIGKILL")


def test_harmless_warnings_are_not_the_cause() -> None:
    text = "[rank0]:[W1121] Warning: destroy_process_group() was not called before program exit\nstep 9 loss 0.1\n"
    assert find_verdict(read_log(text)) is None


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from(
            ["[rank1]: ", "[default0]:", "[1,2]<stderr>:", "[3] ", "Traceback (most recent call last):\n", "\n", "=" * 60,
             "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", "Root Cause (first observed failure):\n",
             "  rank      : 1 (local_rank: 1)\n", "  exitcode  : -9 (pid: 1)\n", "  traceback : x\n", "-" * 70, "[0]:\n",
             "ValueError: x\n", "MPI_ABORT was invoked on rank 1\n", "\x1b[31m", "\x9b", "\0"]
        )
        | st.text(max_size=8),
        max_size=40,
    ).map("".join)
)  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_no_log_makes_it_fail(text: str) -> None:
    verdict = find_verdict(read_log(text))
    assert verdict is None or (verdict.headline is not None and verdict.hint)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_gigabytes_is_read_at_both_its_ends(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    with log.open("wb") as file:
        file.write(b"starting\n")
        os.truncate(log, 4 << 30)
        file.seek(4 << 30)
        file.write(b"\n" + raised("ValueError: bad batch").encode())
    found = diagnose.diagnose_files([str(log)])
    assert found.verdict is not None
    assert found.verdict.detail == "ValueError: bad batch"
    assert "were not read" in found.note


def test_a_pipe_is_read_with_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.RawIOBase):
        """Says much, then fails."""

        left = [b"x" * 100 + b"\n"] * 50 + [raised("ValueError: bad batch").encode()]

        def read(self, size: int = -1) -> bytes:
            return self.left.pop(0) if self.left else b""

        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(diagnose, "TAIL", 1000)
    data, left_out = diagnose._ends(Pipe())  # type: ignore[arg-type]
    assert data.endswith(b"ValueError: bad batch\n")
    assert len(data) < 101 + 1000 + 200
    assert left_out == 101 * 50 + len(raised("ValueError: bad batch")) - len(data) + 1


def test_a_log_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: No such file"):
        diagnose.diagnose_files([str(tmp_path / "no.log")])
    with pytest.raises(UsageError, match="has no logs"):
        diagnose.diagnose_files([str(tmp_path)])


def test_a_rank_that_failed_while_others_went_on_for_long_is_found(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    steps = "".join(f"[rank0]: step {step} loss 2.1\n" for step in range(200_000))
    failure = "".join(f"[rank1]: {line}\n" for line in raised("ValueError: bad batch").splitlines())
    log.write_text(steps + failure + steps)
    found = diagnose.diagnose_files([str(log)])
    assert found.verdict is not None
    assert (found.verdict.rank, found.verdict.detail) == (1, "ValueError: bad batch")


@from_table
def test_names_of_logs_tell_ranks(names: list[str], ranks: list[int | None]) -> None:
    assert diagnose.ranks_in_names(names) == ranks


def test_the_logs_of_one_job_are_read_together(tmp_path: Path) -> None:
    for rank, message in enumerate((CLOSED, "ValueError: bad batch", CLOSED)):
        folder = tmp_path / "logs" / "none_x1" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(raised(message))
        (folder / "stdout.log").write_text("step 3\n")
    found = diagnose.diagnose_files([str(tmp_path / "logs")])
    assert found.verdict is not None
    assert (found.verdict.rank, found.verdict.headline) == (1, "rank 1 raised ValueError")
    assert found.verdict.followed == ("2 other ranks lost the connection to it: 0, 2",)


@pytest.mark.slow
def test_binary_junk_shows_nothing_that_is_known(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(bytes(range(256)) * 5000)
    found = diagnose.diagnose_files([str(junk)])
    assert (found.verdict, found.exit_status) == (None, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bit",
    [
        *rows("unit/verdict", "a_hostile_log_is_read_in_time"),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + "=" * 20
        + "\n  rank : 1 (local_rank: 1)\n"
        "  exitcode : 1 (pid: 1)\n  traceback : Traceback (most recent call last):\n" + "=" * 20 + "\n",
        "[PG ID 0 Rank 1] last enqueued work: " + "9" * 5000 + ", last completed work: 1\n",
        "process rank 1 with PID 1 on node x exited on signal " + "9" * 5000 + "\n",
    ],
)
def test_a_hostile_log_is_read_in_time(bit: str) -> None:
    begin = time.process_time()
    find_verdict(read_log(bit * (1_000_000 // len(bit))))
    assert time.process_time() - begin < 20


def test_a_log_of_twice_as_many_ranks_takes_twice_the_work() -> None:
    def judged(ranks: int) -> Verdict | None:
        return find_verdict(read_log("".join(f"[rank{rank}]: MemoryError\n" for rank in range(ranks))))

    verdict = judged(500)  # what it compiles and caches is not counted
    assert calls_of(lambda: judged(2000)) < 2.5 * calls_of(lambda: judged(1000))
    assert verdict is not None
