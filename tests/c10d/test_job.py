"""What jobs over both backends of ours do."""

from pathlib import Path

import pytest

from tests.c10d import scripts
from tests.c10d.jobs import Job, check_all_well, said
from tests.support import entries


@pytest.fixture(params=["mpi", "ucc"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs the text of a script on some ranks."""
    monkeypatch.chdir(tmp_path)
    return Job(request.param, tmp_path)


def test_a_callback_may_begin_collectives_and_wait_for_them(job: Job) -> None:
    done = job(2, scripts.CALLBACKS)
    check_all_well(done)
    for rank in (0, 1):
        assert said(done, rank)[:2] == scripts.SAID_BY_CALLBACKS
        assert "of the callback" in said(done, rank)[2]


def test_communication_hooks_of_ddp_train_as_over_gloo(job: Job) -> None:
    done = job(2, scripts.HOOKS)
    check_all_well(done)
    for rank in (0, 1):
        assert [line for line in said(done, rank) if not line.endswith(": well")] == ["end"]


def test_models_train_and_are_saved_as_over_gloo(job: Job) -> None:
    done = job(2, scripts.MODELS_TRAIN)
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["same bits"]


def test_async_operations_run_in_order_and_overlap_with_what_the_caller_does(job: Job) -> None:
    done = job(2, scripts.ASYNC_OPERATIONS)
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["done"]


def test_a_timeout_is_raised_where_the_script_waits_and_breaks_the_group(job: Job) -> None:
    done = job(2, scripts.A_TIMEOUT)
    first, third, second, later, _ = said(done, 0)
    where = "all_reduce(4 x torch.float32, SUM) on rank 0 of process group"
    assert first.startswith(f"DistBackendError: {where}")
    assert "the timeout of 1 s is over" in first
    assert third == first
    assert where in second
    assert "can't be used any more" in later
    assert where in later


def test_a_synchronous_collective_and_a_receive_time_out_too(job: Job) -> None:
    done = job(2, scripts.SYNCHRONOUS_TIMEOUTS)
    assert "broadcast(4 x torch.float32, from rank 1)" in said(done, 0)[0]
    assert "recv(4 x torch.float32, from rank 1, tag 0)" in said(done, 0)[1]


def test_ranks_that_call_different_things_are_told_what(job: Job) -> None:
    done = job(3, scripts.DIFFERENT_CALLS)
    for rank in range(3):
        assert (
            "ranks 0, 1: all_reduce(4 x torch.float32, SUM); rank 2: broadcast(3 x torch.float32, from rank 0)"
            in said(done, rank)[0]
        )
    assert done.returncode == 0  # all ranks have the error, so the library is in order


def test_torch_s_short_forms_and_functional_results_are_taken(job: Job) -> None:
    done = job(2, scripts.SHORT_FORMS)
    check_all_well(done)
    for rank in (0, 1):
        assert said(done, rank) == [
            "[3.0, 3.0]",
            "[2.0, 2.0]",
            "[6.0, 6.0]",
            "[[3.0, 3.0], [3.0, 3.0]]",
            "[2.0, 2.0, 2.0, 2.0]",
            f"[False, '{job.backend}', True]",
        ]


def test_the_tools_of_torch_see_operations(job: Job) -> None:
    done = job(2, scripts.TOOLS_SEE)
    check_all_well(done)
    for rank in (0, 1):
        assert said(done, rank) == [
            "c10d::allreduce_ False ",
            f"{job.backend}:all_reduce True [[2]]",
            "c10d::allgather_ False ",
            f"{job.backend}:all_gather True [[2]]",
            "c10d::barrier False ",
            f"{job.backend}:barrier True []",
            "['c10d.allgather_: 1', 'c10d.allreduce_: 2']",
            "real 1",
            "fake 1",
            "[4.0, 4.0] [6.0, 6.0]",
        ]


def test_each_signature_of_the_installed_torch_is_taken(job: Job) -> None:
    done = job(1, scripts.SIGNATURES)
    check_all_well(done)
    assert said(done, 0) == ["enough"]


def test_a_group_whose_members_do_not_come_is_not_made(job: Job) -> None:
    done = job(3, scripts.MEMBERS_DO_NOT_COME)
    assert "rank 1 did not come within 5 s" in said(done, 0)[0]
    assert "rank 1 did not come within 5 s" in said(done, 2)[0]
    assert (done.returncode != 0) == (job.backend == "mpi")


def test_a_script_may_end_without_destroying_its_groups(job: Job) -> None:
    done = job(2, scripts.ENDS_WITHOUT_DESTROYING)
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["end"]


def test_monitored_barrier_names_who_is_missing(job: Job) -> None:
    done = job(3, entries("c10d/job", "monitored_barrier_names_who_is_missing"))
    assert "the timeout of 1 s is over: ranks 1, 2 have not called it" in said(done, 0)[0]


def test_abort_frees_whoever_waits(job: Job) -> None:
    done = job(2, entries("c10d/job", "abort_frees_whoever_waits"))
    assert "was aborted" in said(done, 0)[0]
