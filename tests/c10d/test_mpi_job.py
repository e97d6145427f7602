"""What a job of ranks over MPI does, besides what `test_job.py` has of both backends: its groups, and every way to end."""

from pathlib import Path

import pytest

from tests.c10d.jobs import Job, check_all_well, said
from tests.support import entries


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs the text of a script on some ranks."""
    monkeypatch.chdir(tmp_path)
    return Job("mpi", tmp_path)


# --- groups -----------------------------------------------------------------------------------------------------------------


def test_groups_have_members_only_and_may_be_made_by_threads_in_any_order(job: Job) -> None:
    done = job(3, entries("c10d/mpi_job", "groups_have_members_only_and_may_be_made_by_threads_in_any_order"))
    check_all_well(done)
    assert [line.split()[:2] for line in said(done, 0)] == [["2", "2.0"]]
    assert said(done, 1) == []
    assert [line.split()[:2] for line in said(done, 2)] == [["1", "1.0"], ["2", "2.0"]]


def test_a_group_of_gloo_uses_the_store_that_the_launcher_hosts(job: Job) -> None:
    done = job(2, entries("c10d/mpi_job", "a_group_of_gloo_uses_the_launchers_store"))
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["gloo 4.0"]


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
    done = job(2, entries("c10d/mpi_job", "a_group_can_be_destroyed_and_made_again"))
    check_all_well(done)
    assert said(done, 0) == ["2"], (
        "threads of groups that are gone are gone: main, and the one that looks after the job"
    )


def test_a_data_loader_that_forks_leaves_mpi_alone(job: Job) -> None:
    done = job(2, entries("c10d/mpi_job", "a_data_loader_that_forks_leaves_mpi_alone"))
    check_all_well(done)
    assert "forked from a rank" in said(done, 0)[0]


def test_tensors_of_a_gpu_go_through_the_memory_of_the_host(job: Job, real_gpus: int) -> None:
    done = job(2, entries("c10d/mpi_job", "tensors_of_a_gpu_go_through_the_memory_of_the_host"))
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
