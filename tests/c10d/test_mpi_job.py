"""What a job of ranks over MPI does, besides what `test_job.py` has of both backends: its groups, and every way to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c10d.jobs import Job, check_all_well, said


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs the text of a script on some ranks."""
    monkeypatch.chdir(tmp_path)
    return Job("mpi", tmp_path)


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
            group = ProcessGroup.create(name, [0, 1, 2], timedelta(seconds=LONGEST), rank)
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


def test_an_uncaught_exception_ends_the_job_and_is_printed_first(job: Job) -> None:
    done = job(
        2,
        """
        start()
        dist.barrier()
        if rank == 1:
            raise ValueError("the cause")
        dist.all_reduce(torch.ones(4))
        """,
        anew=True,
    )
    assert done.returncode == 1
    assert "[rank1]: ValueError: the cause" in done.stderr
    assert "rank 1 aborts the MPI job: uncaught" in done.stderr


def test_a_rank_that_leaves_by_sys_exit_lets_nobody_wait(job: Job) -> None:
    done = job(
        2,
        """
        start()
        dist.barrier()
        if rank == 1:
            sys.exit(3)
        dist.all_reduce(torch.ones(4))
        """,
        anew=True,
    )
    assert done.returncode != 0
    assert "rank 1: leaves the group" in done.stderr


@pytest.mark.parametrize(("end", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)])
def test_a_rank_that_dies_ends_the_job(job: Job, end: str, status: int) -> None:
    done = job(
        2,
        f"""
        start()
        dist.barrier()
        if rank == 1:
            {end}
        dist.all_reduce(torch.ones(4))
        """,
        anew=True,
    )
    assert done.returncode == status


def test_ranks_that_do_not_see_one_another_are_found_out(job: Job) -> None:
    done = job(
        1,
        """
        os.environ["OMPI_COMM_WORLD_SIZE"] = "4"
        say(error_of(start))
        """,
    )
    assert "every rank would be alone" in said(done, 0)[0]
