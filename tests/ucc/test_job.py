"""What ranks over UCC do, besides what `tests/c10d/test_job.py` has of both backends: groups, timeouts, every way to end, and what is left behind."""

from pathlib import Path

import pytest

from tests.c10d.jobs import Job, check_all_well, said
from tests.support import entries


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs the text of a script on some ranks."""
    monkeypatch.chdir(tmp_path)
    return Job("ucc", tmp_path)


# --- groups -----------------------------------------------------------------------------------------------------------------


def test_groups_have_members_only_and_may_be_made_by_threads_in_any_order(job: Job) -> None:
    done = job(3, entries("ucc/job", "groups_have_members_only_and_may_be_made_by_threads_in_any_order"))
    check_all_well(done)
    assert [said(done, rank) for rank in range(3)] == [["2 2.0 ucc", "1"], ["1"], ["1 1.0 ucc", "2 2.0 ucc", "1"]], (
        "all groups are teams of one context"
    )


@pytest.mark.parametrize("name", ["cpu:ucc", "rankdeck_ucc", "ucc"])
def test_a_group_may_stand_beside_one_of_gloo(job: Job, name: str) -> None:
    done = job(
        3,
        f"""
        dist.init_process_group("gloo")
        group = dist.new_group([1, 2], backend={name!r})
        if rank:
            dist.all_reduce(tensor := torch.ones(3), group=group)
            say(tensor.tolist())
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert said(done, 1) == said(done, 2) == ["[2.0, 2.0, 2.0]"]


def test_a_group_can_be_destroyed_and_made_again(job: Job) -> None:
    done = job(2, entries("ucc/job", "a_group_can_be_destroyed_and_made_again"))
    check_all_well(done)
    assert said(done, 0) == ["1", "2"], "one context does; threads: main, and the one that looks after the groups"


def test_tensors_are_let_go_of_when_their_collective_is_done(job: Job) -> None:
    done = job(2, entries("ucc/job", "tensors_are_let_go_of_when_their_collective_is_done"))
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["[None, None]"] * 2


def test_a_small_sum_has_the_same_bits_on_every_rank(job: Job) -> None:
    done = job(3, entries("ucc/job", "a_small_sum_has_the_same_bits_on_every_rank"))
    check_all_well(done)
    assert [said(done, rank) for rank in range(3)] == [["same bits"]] * 3


def test_messages_go_to_oneself_by_tag_and_whoever_comes_first(job: Job) -> None:
    done = job(3, entries("ucc/job", "messages_go_to_oneself_by_tag_and_whoever_comes_first"))
    check_all_well(done)
    tags = (2**27 - 4, 7, 7)
    assert said(done, 0) == [str([rank * 10 + tag % 9 for tag in tags for rank in (2, 1)]), "[1, 2]"]


def test_a_data_loader_that_forks_leaves_ucc_alone(job: Job) -> None:
    done = job(2, entries("ucc/job", "a_data_loader_that_forks_leaves_ucc_alone"))
    check_all_well(done)
    assert "forked from a rank" in said(done, 0)[0]
    assert said(done, 0)[1].startswith("RuntimeError: this process was forked from a rank, and can't be one itself")


# --- failures -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gives_up", ["timeout", "interrupt"])
def test_memory_that_ucc_may_still_write_to_outlives_a_collective_that_is_given_up(job: Job, gives_up: str) -> None:
    done = job(
        2,
        f"""
        import weakref
        start()
        store = dist.distributed_c10d._get_default_store()
        group = dist.new_group()
        dist.barrier(group)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if {gives_up!r} == "timeout":
            group.set_timeout(timedelta(seconds=5))
        from rankdeck.c10d._ucc.collectives import Collectives
        gather, temporary = Collectives.all_gather, []
        def all_gather(self, output, *arguments):
            if rank == 1:
                store.wait(["over"])
                os._exit(0)
            temporary.append(weakref.ref(output))
            if {gives_up!r} == "interrupt":  # while UCC is at it
                group._place.team.is_over = lambda: signal.raise_signal(signal.SIGINT)
            gather(self, output, *arguments)
        Collectives.all_gather = all_gather
        try:
            dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(5), group=group)
        except (KeyboardInterrupt, dist.DistBackendError) as error:
            say(type(error).__name__)
        say(temporary[0]() is not None)
        say(group._place.team.context.broken)
        say(group._place.team.holds)
        store.set("over", "")
        os._exit(0)
        """,
    )
    name = "DistBackendError" if gives_up == "timeout" else "KeyboardInterrupt"
    assert said(done, 0) == [name, "True", "True", "[]"], done.stderr


def test_a_failure_inside_ucc_is_an_error_though_it_reports_success(job: Job) -> None:
    done = job(2, entries("ucc/job", "a_failure_inside_ucc_is_an_error_though_it_reports_success"))
    for rank in range(2):
        assert "Operation is not supported" in said(done, rank)[0]


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), 11)"])
def test_a_rank_that_dies_is_named_to_those_who_wait_for_it(job: Job, end: str) -> None:
    done = job(
        3,
        f"""
        start()
        dist.barrier()
        meet("past", 0, 1, 2)
        if rank == 1:
            {end}
        say(error_of(dist.all_reduce, torch.ones(4)))
        meet("said", 0, 2)
        os._exit(0)
        """,
    )
    for rank in (0, 2):
        assert "all_reduce(4 x torch.float32, SUM) on rank" in said(done, rank)[0]
        assert "the process of rank 1 has ended" in said(done, rank)[0]


def test_a_rank_that_dies_in_the_middle_is_named_too(job: Job) -> None:
    done = job(2, entries("ucc/job", "a_rank_that_dies_in_the_middle_is_named_too"))
    assert "all_reduce(4 x torch.float32, SUM) on rank 0" in said(done, 0)[0]
    assert "recv(1 x torch.float32, from rank 1, tag 0) on rank 0" in said(done, 0)[1]
    for line in said(done, 0):
        assert "the process of rank 1 has ended" in line


def test_a_rank_that_ends_does_no_harm_to_messages_between_others_nor_to_those_it_has_sent(job: Job) -> None:
    done = job(
        3, entries("ucc/job", "a_rank_that_ends_does_no_harm_to_messages_between_others_nor_to_those_it_has_sent")
    )
    values, error = said(done, 0)
    assert values == "[2.0, 2.0, 2.0, 3.0, 3.0, 3.0]"
    assert "the process of rank 2 has ended" in error


def test_a_collective_that_hangs_inside_ucc_ends_at_the_deadline(job: Job) -> None:
    done = job(2, entries("ucc/job", "a_collective_that_hangs_inside_ucc_ends_at_the_deadline"))
    assert "the timeout of 1 s is over" in said(done, 0)[0]
    assert said(done, 0)[1] == "1.0"


@pytest.mark.parametrize("end", ["raise ValueError('the cause')", "sys.exit(3)"])
def test_a_rank_that_leaves_lets_nobody_wait(job: Job, end: str) -> None:
    done = job(
        2,
        f"""
        start()
        dist.barrier()
        meet("past", 0, 1)
        from rankdeck.c10d._ucc import process as ucc_process
        ucc_process._LEAVE_TIMEOUT = ucc_process._FAILED_LEAVE_TIMEOUT = LONGEST  # the other may be slow
        if rank == 1:
            {end}
        say(error_of(dist.all_reduce, torch.ones(4)))
        """,
    )
    assert "rank 1: leaves the group" in said(done, 0)[0]
    assert done.statuses[1] in (1, 3)
    assert ("ValueError: the cause" in done.errors[1]) == end.startswith("raise")


def test_the_store_ends_with_its_last_group(job: Job) -> None:
    done = job(2, entries("ucc/job", "the_store_ends_with_its_last_group"))
    assert said(done, 0) == said(done, 1) == ["refused"], done.stderr


@pytest.mark.parametrize("end", ["abort", "shutdown"])
def test_nothing_piles_up_where_groups_fail_again_and_again(job: Job, end: str) -> None:
    done = job(
        2,
        f"""
        start()
        from rankdeck.c10d._ucc import process as ucc_process
        from rankdeck.c10d._ucc.group import ProcessGroup
        process, store = ucc_process.join(), dist.distributed_c10d._get_default_store()
        def pidfds():
            paths = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
            return sum("pidfd" in os.readlink(path) for path in paths if os.path.islink(path))
        before = pidfds()
        for count in range(4):
            group = ProcessGroup(str(count), dist.PrefixStore(str(count), store), rank, 2, timedelta(seconds=LONGEST))
            group.allreduce([torch.ones(1)]).wait()
            group._place.team.context.broken = True
            if {end!r} == "shutdown":
                group._operations.fail("for the test")
            group.{end}()
        say(f"{{len(process._members)}} {{len(process._contexts)}} {{pidfds() - before}}")
        os._exit(0)
        """,
    )
    assert said(done, 0) == said(done, 1) == ["1 1 0"], done.stdout + done.stderr


def test_a_crash_is_told_by_faulthandler(job: Job) -> None:
    done = job(
        2,
        """
        start()
        dist.barrier()
        import ctypes
        ctypes.string_at(8)
        """,
    )
    assert set(done.statuses) == {-11}
    assert "Fatal Python error: Segmentation fault" in done.errors[0]
    assert "script.py" in done.errors[0]
