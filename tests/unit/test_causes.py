"""The knowledge base: every entry is shown by real words, says what it means, and takes no time on hostile text."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import pytest

from engine.core.failures.causes import CAUSES
from engine.core.failures.causes.cause import Cause, Kind
from engine.core.failures.known import find, find_all
from engine.core.failures.launcher_log import read_log
from engine.core.failures.verdict import find_verdict

FAILURES = Path(__file__).resolve().parents[1] / "data" / "failures"
INDEX = tomllib.loads((FAILURES / "index.toml").read_text())
KINDS: tuple[Kind, ...] = ("cause", "consequence", "end", "remark")

SAMPLES: list[tuple[str, str]] = [
    # what no recording shows
    ("N1", "ncclInvalidUsage\nLast error:\nMultiple Ranks are using the same GPU/Partition\n"),
    ("N9", "NCCL WARN unlink shared memory /dev/shm/nccl-3hUxBw failed, error: No such file or directory"),
    ("N15", "[rank0]:[W1121] Warning: WARNING: destroy_process_group() was not called before program exit"),
    ("N15", "Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL."),
    ("N16", "[rank0]: Rank 0]  using GPU 0 to perform barrier as device used by this process is currently unknown."),
    ("N16", "UserWarning: barrier(): using the device under current context."),
    ("K1", "torch.distributed.DistBackendError: all_reduce over ucc, rank 0 of 2: the process of rank 1 has ended"),
    ("K1", "torch.distributed.DistBackendError: barrier over ucc: rank 1: leaves the group"),
    ("G3", "RuntimeError: [gloo/transport/tcp/pair.cc:448] Application timeout caused pair closure"),
    (
        "D3",
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent 2 params.",
    ),
    (
        "E7",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
    ),
    ("C8", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("C7", "RuntimeError: No CUDA GPUs are available"),
    ("C7", "RuntimeError: Found no NVIDIA driver on your system."),
    ("C9", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    ("M20", "Open MPI detected a mismatch in versions between two processes.  This\ntypically means that you executed"),
    ("M15", "Open MPI has detected that this process has attempted to initialize\nMPI (via MPI_INIT) more than once."),
    ("M17", "  orte_ess_init failed\n  --> Returned value No permission (-17) instead of ORTE_SUCCESS"),
    ("M14", "[node1:4101] PMIX ERROR: OUT-OF-RESOURCE in file gds_ds12_lock_pthread.c at line 168"),
    ("U2", "UCC  ERROR unsupported reduction type (float16)"),
    ("U3", "UCC  WARN  timeout 30.00 sec. has expired on Allreduce: 42"),
    ("U6", "UCX  ERROR process_vm_readv(pid=4100 {0x7f,1}) returned -1: Operation not permitted"),
    (
        "U7",
        "OSError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /usr/lib/libucc.so.1)",
    ),
    (
        "U9",
        "torch.distributed.DistBackendError: all_reduce(1000 x torch.float32, SUM) on rank 0 of process group '0' failed: "
        "nothing has come from [2, 3] though UCC says that it has",
    ),
    (
        "U9",
        "torch.distributed.DistBackendError: barrier() on rank 0 failed: UCC reports success, but the data of ranks [2] is missing",
    ),
    ("S6", "kex_exchange_identification: Connection closed by remote host"),
    ("P1", "can't start: Permission denied: '/opt/env/bin/python'"),
    ("P5", "train.py: error: --steps: '0' is not a whole number of 1 or more (--help lists the arguments)"),
    ("P15", "usage: t.py [-h] --local-rank R\nt.py: error: the following arguments are required: --local-rank"),
    ("P15", "Error: Missing option '--local_rank'."),
    ("P14", "OSError: [Errno 122] Disk quota exceeded: 'last.pt'"),
    ("P10", "PermissionError: [Errno 13] Permission denied: '/data/x'"),
]


def first_cause(text: str) -> str:
    return next((found.cause.id for kind in KINDS if (found := find(text, kind))), "")


# --- what was recorded -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_recorded_failure_has_its_root_cause(name: str) -> None:
    wanted = INDEX[name]
    verdict = find_verdict(read_log((FAILURES / f"{name}.txt").read_text(errors="replace")))
    if not wanted["cause"]:
        assert verdict is None
        return
    assert verdict is not None
    assert (verdict.cause, verdict.rank) == (wanted["cause"], wanted.get("rank"))
    assert wanted["words"] in f"{verdict.headline} {verdict.detail}"
    assert verdict.hint


def test_every_recording_is_in_the_index_with_where_it_comes_from() -> None:
    assert sorted(INDEX) == sorted(path.stem for path in FAILURES.glob("*.txt"))
    assert all(entry["from"].startswith(("recorded: ", "composed: ")) for entry in INDEX.values())
    assert sum(entry["from"].startswith("recorded: ") for entry in INDEX.values()) >= 60


def test_no_recording_tells_of_the_machine_that_it_was_made_on() -> None:
    for path in FAILURES.glob("*.txt"):
        assert not re.search(r"/root/|/tmp/rd|@vm\b", path.read_text(errors="replace")), path.name


# --- entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "text"), SAMPLES, ids=[number for number, _ in SAMPLES])
def test_a_cause_is_found_in_its_words(number: str, text: str) -> None:
    assert first_cause(text) == number


@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if not cause.speaker], ids=lambda cause: f"{cause.id} {cause.pattern[:30]}"
)
def test_every_cause_is_shown_by_a_recording_or_a_sample(cause: Cause) -> None:
    texts = [*(path.read_text(errors="replace") for path in FAILURES.glob("*.txt")), *(text for _, text in SAMPLES)]
    assert any(re.search(cause.pattern, text, re.MULTILINE) for text in texts)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: f"{cause.id} {cause.pattern[:30]}")
def test_a_cause_names_only_groups_that_it_has(cause: Cause) -> None:
    groups = dict.fromkeys(re.compile(cause.pattern).groupindex, "x")
    groups |= {"node": "gpu01", "python": "python3", "job": "1234"} if cause.speaker else {}
    assert cause.hint.format(**groups)
    cause.detail.format(**groups)
    cause.fix.format(**groups)
    cause.blames.format(**groups, who="rank 1")
    assert "\n" not in cause.fix


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: f"{cause.id} {cause.pattern[:30]}")
def test_a_cause_has_an_id_and_a_next_step(cause: Cause) -> None:
    assert re.fullmatch(r"[BCDEGKMNPRSTU]\d{1,2}", cause.id)
    assert cause.hint


def test_what_a_text_puts_into_a_command_is_one_word() -> None:
    found = find("ssh: Could not resolve hostname $(touch/pwned)`x`;y: Name or service not known")
    assert found is not None
    assert found.fix == "getent hosts '$(touch/pwned)`x`;y'"


def test_the_more_special_of_two_causes_is_found() -> None:
    both = "unhandled system error\nLast error:\nBootstrap : no socket interface found\n"
    assert first_cause(both) == first_cause("\n".join(reversed(both.split("\n")))) == "N2"


@pytest.mark.parametrize(
    ("words", "is_nccl"),
    [
        ("RuntimeError: No CUDA GPUs are available", False),
        ("RuntimeError: Found no NVIDIA driver on your system.", False),
        ("AssertionError: Torch not compiled with CUDA enabled", False),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", True),
    ],
)
def test_another_backend_is_proposed_only_where_the_backend_is_nccl(words: str, is_nccl: bool) -> None:
    found = find(words)
    assert found is not None
    assert ("gloo" in f"{found.hint} {found.fix}") == is_nccl


# --- hostile text ----------------------------------------------------------------------------------------------------

BITS = (
    *("Process name: [", "MPI_ABORT was invoked on rank 1 ", "usage: x\n ", "Watchdog caught collective operation timeout: "),
    *("WorkNCCL(SeqNum=1, OpType=A", "Detected mismatch between collectives on ranks. Rank 0 is running collective: "),
    *("CollectiveFingerPrint(OpType=A", "NCCL WARN ", "Last error:\n", "Ranks 1, ", "orte_init failed\n", "PMIX ERROR"),
    *("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n= ", "was unable to launch the specified application ", "1, "),
    *("process rank 1 with PID 1 on node x exited on ", "ssh: ", "a" * 7, " ", "\n", "\t", "=", "(", "[", "1", "\0", "é"),
    *("DataLoader worker (pid(s) 1, ", "unable to write", "version 'GLIBC_2", "timeout 1", "Unable to find address for: "),
)  # fmt: skip


@pytest.mark.parametrize("bit", BITS)
def test_no_pattern_takes_long_on_hostile_text(bit: str) -> None:
    text = (bit * 70_000)[:70_000]
    begin = time.process_time()
    for kind in KINDS:
        find(text, kind)
        for _ in find_all(text, kind):
            pass
    assert time.process_time() - begin < 10
