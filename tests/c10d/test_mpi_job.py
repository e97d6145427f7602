"""What a job of real ranks does: groups, timeouts, every way to end, and what is left behind."""

from __future__ import annotations

import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.c10d import scripts
from tests.c10d.mpirun import SECONDS, need_mpi, run_job

PREAMBLE = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import rankdeck.c10d.mpi

torch.set_num_threads(1)
rank, world = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])


def start(seconds=120):
    dist.init_process_group("mpi", timeout=timedelta(seconds=seconds))


def start_beside_gloo():
    store = f"file://{sys.argv[1]}/store"
    dist.init_process_group("cpu:mpi", init_method=store, rank=rank, world_size=world)


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def say(text):
    sys.stdout.write(f"[{rank}] {text}\\n")  # in one piece: the ranks share a pipe
    sys.stdout.flush()
"""

Job = Callable[..., "subprocess.CompletedProcess[str]"]

ABORTS = "aborts the MPI job"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Runs the text of a script on some ranks: `job(2, text)`."""
    need_mpi()

    def run(ranks: int, text: str, seconds: float = SECONDS, **env: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(PREAMBLE + textwrap.dedent(text))
        return run_job(ranks, script, str(tmp_path), seconds=seconds, env=env)

    return run


def said(done: subprocess.CompletedProcess[str], rank: int) -> list[str]:
    """The lines of one rank."""
    mark = f"[{rank}] "
    return [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]


def check_all_well(done: subprocess.CompletedProcess[str]) -> None:
    """The job has ended with success, and nobody complained."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert ABORTS not in done.stderr, done.stderr


# --- groups -----------------------------------------------------------------------------------------------------------------


def test_groups_have_members_only_and_may_be_made_by_threads_in_any_order(job: Job) -> None:
    done = job(
        3,
        """
        start()
        alone = dist.new_group([2])
        pair = dist.new_group([0, 2])
        for group in (alone, pair):
            if rank in dist.get_process_group_ranks(group):
                tensor = torch.ones(2)
                dist.all_reduce(tensor, group=group)
                say(f"{dist.get_world_size(group)} {tensor[0].item()} {group.group_name}")
        from rankdeck.c10d._mpi.group import ProcessGroup
        def make(name):
            group = ProcessGroup.create(name, [0, 1, 2], timedelta(seconds=20), rank)
            tensor = torch.full((1,), float(len(name)))
            group.allreduce([tensor]).wait()
            assert tensor.item() == 3 * len(name), tensor
            group.shutdown()
        threads = [threading.Thread(target=make, args=("x" * size,)) for size in (1, 2, 3)]
        for thread in threads if rank == 0 else threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join()
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert [line.split()[:2] for line in said(done, 0)] == [["2", "2.0"]]
    assert said(done, 1) == []
    assert [line.split()[:2] for line in said(done, 2)] == [["1", "1.0"], ["2", "2.0"]]


@pytest.mark.parametrize("name", ["cpu:mpi", "rankdeck_mpi"])
def test_rank_and_world_size_may_come_from_the_environment(job: Job, name: str, tmp_path: Path) -> None:
    done = job(
        2,
        f"""
        dist.init_process_group({name!r}, init_method=f"file://{{sys.argv[1]}}/store", rank=rank, world_size=world)
        dist.barrier()
        say(f"{{dist.get_rank()}} of {{dist.get_world_size()}}, {{dist.group.WORLD.name()}}")
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert [said(done, 0), said(done, 1)] == [["0 of 2, mpi"], ["1 of 2, mpi"]]


def test_a_rank_that_torch_and_mpi_number_differently_is_refused(job: Job) -> None:
    done = job(
        2,
        """
        dist.init_process_group("cpu:mpi", init_method=f"file://{sys.argv[1]}/store", rank=1 - rank, world_size=world)
        """,
    )
    assert done.returncode != 0
    assert "let RANK be MPI's own" in done.stderr


def test_a_group_can_be_destroyed_and_made_again(job: Job) -> None:
    done = job(
        2,
        """
        for count in range(20):
            start()
            dist.new_group([0])
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [2.0] * 3
            dist.destroy_process_group()
        say(threading.active_count())
        """,
    )
    check_all_well(done)
    assert said(done, 0) == ["2"], (
        "threads of groups that are gone are gone: main, and the one that looks after the job"
    )


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


def test_models_train_and_are_saved_over_mpi_as_over_gloo(job: Job) -> None:
    done = job(
        2,
        scripts.MODELS_TRAIN,
    )
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["same bits"]


def test_async_operations_run_in_order_and_overlap_with_what_the_caller_does(job: Job) -> None:
    done = job(
        2,
        scripts.ASYNC_OPERATIONS,
    )
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["done"]


def test_what_can_not_be_done_is_refused_before_anybody_waits(job: Job) -> None:
    done = job(
        2,
        scripts.REFUSALS,
    )
    check_all_well(done)
    lines = said(done, 0)
    for line, words in zip(lines, scripts.REFUSED_WITH, strict=False):
        assert words in line
    assert lines[6] == "[2.0, 2.0, 2.0, 2.0]"


def test_a_data_loader_that_forks_leaves_mpi_alone(job: Job) -> None:
    done = job(
        2,
        """
        start()
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2, multiprocessing_context="fork")
        for epoch in range(2):
            for (batch,) in loader:
                dist.all_reduce(batch)
        pid = os.fork()
        if pid == 0:
            say(error_of(dist.barrier))
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert "forked from a rank" in said(done, 0)[0]


def test_tensors_of_a_gpu_go_through_the_memory_of_the_host(job: Job, real_gpus: int) -> None:
    done = job(
        2,
        """
        start()
        tensor = torch.full((4, 2), rank + 1.0, device="cuda")
        dist.all_reduce(tensor.t())
        dist.all_reduce(tensor, async_op=True).wait()
        gathered = torch.zeros(8, 2, device="cuda")
        dist.all_gather_single(gathered, tensor)
        dist.isend(gathered, 1 - rank), dist.recv(received := torch.zeros_like(gathered), 1 - rank)
        say(f"{received.device.type} {received.unique().tolist()}")
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["cuda [6.0]"]


# --- failures -----------------------------------------------------------------------------------------------------------------


def test_a_timeout_is_raised_where_the_script_waits_and_breaks_the_group(job: Job) -> None:
    done = job(
        2,
        scripts.A_TIMEOUT,
    )
    first, third, second, later, quick, _ = said(done, 0)
    where = "all_reduce(4 x torch.float32, SUM) on rank 0 of process group"
    assert first.startswith(f"DistBackendError: {where}")
    assert "the timeout of 1 s is over" in first
    assert third == first
    assert where in second
    assert "can't be used any more" in later
    assert where in later
    assert quick == "True"


def test_a_synchronous_collective_and_a_receive_time_out_too(job: Job) -> None:
    done = job(
        2,
        scripts.SYNCHRONOUS_TIMEOUTS,
    )
    assert "broadcast(4 x torch.float32, from rank 1)" in said(done, 0)[0]
    assert "recv(4 x torch.float32, from rank 1, tag 0)" in said(done, 0)[1]
    assert said(done, 0)[2] == "True"


def test_ranks_that_call_different_things_are_told_what(job: Job) -> None:
    done = job(3, scripts.DIFFERENT_CALLS)
    for rank in range(3):
        assert (
            "ranks 0, 1: all_reduce(4 x torch.float32, SUM); rank 2: broadcast(3 x torch.float32, from rank 0)"
            in said(done, rank)[0]
        )
    assert done.returncode != 0


def test_monitored_barrier_names_who_is_missing(job: Job) -> None:
    done = job(
        3,
        """
        start()
        dist.group.WORLD.monitored_barrier(timedelta(seconds=10))
        if rank == 0:
            began = time.monotonic()
            say(error_of(dist.group.WORLD.monitored_barrier, timedelta(seconds=1), wait_all_ranks=True))
            say(time.monotonic() - began < 30)
            os._exit(0)
        time.sleep(60)
        """,
    )
    assert "ranks 1, 2 did not come within 1 s" in said(done, 0)[0]
    assert said(done, 0)[1] == "True"


def test_a_group_whose_members_do_not_come_is_not_made(job: Job) -> None:
    done = job(3, scripts.MEMBERS_DO_NOT_COME)
    assert "rank 1 did not come within 1 s" in said(done, 0)[0]
    assert "rank 1 did not come within 1 s" in said(done, 2)[0]
    assert done.returncode != 0


def test_an_uncaught_exception_ends_the_job_and_is_printed_first(job: Job) -> None:
    began = time.monotonic()
    done = job(
        2,
        """
        start()
        dist.barrier()
        if rank == 1:
            raise ValueError("the cause")
        dist.all_reduce(torch.ones(4))
        """,
    )
    assert time.monotonic() - began < 100
    assert done.returncode == 1
    assert "[rank1]: ValueError: the cause" in done.stderr
    assert "rank 1 aborts the MPI job: uncaught" in done.stderr


def test_a_rank_that_leaves_by_sys_exit_lets_nobody_wait(job: Job) -> None:
    began = time.monotonic()
    done = job(
        2,
        """
        start()
        dist.barrier()
        if rank == 1:
            sys.exit(3)
        dist.all_reduce(torch.ones(4))
        """,
    )
    assert time.monotonic() - began < 100
    assert done.returncode != 0
    assert "rank 1: leaves the group" in done.stderr


@pytest.mark.parametrize(("end", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)])
def test_a_rank_that_dies_ends_the_job(job: Job, end: str, status: int) -> None:
    began = time.monotonic()
    done = job(
        2,
        f"""
        start()
        dist.barrier()
        if rank == 1:
            {end}
        dist.all_reduce(torch.ones(4))
        """,
    )
    assert time.monotonic() - began < 100
    assert done.returncode == status


def test_a_script_may_end_without_destroying_its_groups(job: Job) -> None:
    done = job(2, scripts.ENDS_WITHOUT_DESTROYING)
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["end"]


def test_abort_frees_whoever_waits(job: Job) -> None:
    done = job(
        2,
        """
        start()
        dist.barrier()
        if rank == 0:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            threading.Timer(0.5, dist.group.WORLD.abort).start()
            say(error_of(work.wait))
            os._exit(0)
        time.sleep(5)
        """,
    )
    assert "was aborted" in said(done, 0)[0]


def test_ranks_that_do_not_see_one_another_are_found_out(job: Job) -> None:
    done = job(
        1,
        """
        os.environ["OMPI_COMM_WORLD_SIZE"] = "4"
        say(error_of(start))
        """,
    )
    assert "every rank would be alone" in said(done, 0)[0]
