"""What ranks over UCC do, besides what `tests/c10d/test_job.py` has of both backends: groups, timeouts, every way to end, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c10d.jobs import Job, check_all_well, said


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Runs the text of a script on some ranks."""
    monkeypatch.chdir(tmp_path)
    return Job("ucc", tmp_path)


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
                say(f"{dist.get_world_size(group)} {tensor[0].item()} {group.name()}")
        from rankdeck.c10d._ucc.group import ProcessGroup
        store = dist.distributed_c10d._get_default_store()
        def make(name):
            group = ProcessGroup(name, dist.PrefixStore(name, store), rank, 3, timedelta(seconds=LONGEST))
            tensor = torch.full((1,), float(len(name)))
            group.allreduce([tensor]).wait()
            assert tensor.item() == 3 * len(name), tensor
            group.shutdown()
        threads = [threading.Thread(target=make, args=("x" * size,)) for size in (1, 2, 3)]
        for thread in threads if rank == 0 else threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join()
        from rankdeck.c10d._ucc import process as ucc_process
        say(len(ucc_process.join()._contexts))
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert [said(done, rank) for rank in range(3)] == [
        ["2 2.0 ucc", "1"],
        ["1"],
        ["1 1.0 ucc", "2 2.0 ucc", "1"],
    ], "all groups are teams of one context"


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
    done = job(
        2,
        """
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, rank == 0)
        for count in range(10):
            dist.init_process_group("ucc", store=store, rank=rank, world_size=world)
            dist.new_group([0])
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [2.0] * 3
            dist.destroy_process_group()
        from rankdeck.c10d._ucc import process as ucc_process
        say(len(ucc_process.join()._contexts))
        process = ucc_process.join()
        while process._leaving:
            time.sleep(0.01)
        say(threading.active_count())
        """,
    )
    check_all_well(done)
    assert said(done, 0) == ["1", "2"], "one context does; threads: main, and the one that looks after the groups"


def test_tensors_are_let_go_of_when_their_collective_is_done(job: Job) -> None:
    done = job(
        2,
        """
        import weakref
        start()
        seen = []
        for is_async in (False, True):
            tensors = [torch.ones(1000), torch.ones(2000).view(2, 1000)]
            work = dist.all_gather_into_tensor(tensors[1], tensors[0], async_op=is_async)
            if work is not None:
                work.wait()
            left = [weakref.ref(tensor) for tensor in tensors]
            del tensors, work
            end = time.monotonic() + LONGEST
            while any(one() is not None for one in left) and time.monotonic() < end:
                time.sleep(0.001)  # the group's thread may be about to
            say([one() for one in left])
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert said(done, 0) == said(done, 1) == ["[None, None]"] * 2


def test_a_small_sum_has_the_same_bits_on_every_rank(job: Job) -> None:
    done = job(
        3,
        """
        start()
        torch.manual_seed(rank)
        for _ in range(50):
            dist.all_reduce(tensor := torch.randn(5))
            dist.all_gather(found := [torch.empty(5) for _ in range(world)], tensor)
            assert all(torch.equal(tensor, other) for other in found), found
        say("same bits")
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    assert [said(done, rank) for rank in range(3)] == [["same bits"]] * 3


def test_messages_go_to_oneself_by_tag_and_whoever_comes_first(job: Job) -> None:
    done = job(
        3,
        """
        start()
        if rank:
            for tag in (7, 2**31 - 1, 7):
                dist.send(torch.full((1000,), float(rank * 10 + tag % 9)), 0, tag=tag)
        else:
            got, tensor = [], torch.zeros(1000)
            for tag in (2**31 - 1, 7, 7):
                for source in (2, 1):
                    assert dist.recv(tensor, source, tag=tag) == source
                    got.append(int(tensor[999]))
            say(got)
        dist.barrier()
        work = dist.group.WORLD.send([torch.ones(3)], rank, 1)
        dist.group.WORLD.recv([mine := torch.zeros(3)], rank, 1).wait()
        work.wait()
        big = torch.full((1 << 20,), float(rank))
        if rank:
            dist.send(big, 0)
        else:
            seen = set()
            for _ in (1, 2):
                source = dist.recv(big)
                assert big[0] == big[-1] == source
                seen.add(source)
            say(sorted(seen))
        dist.destroy_process_group()
        """,
    )
    check_all_well(done)
    tags = (2**31 - 1, 7, 7)
    assert said(done, 0) == [str([rank * 10 + tag % 9 for tag in tags for rank in (2, 1)]), "[1, 2]"]


def test_a_message_of_another_size_is_no_success(job: Job) -> None:
    done = job(
        2,
        """
        start()
        for size in (2, 6, 1 << 20):
            group = dist.new_group()
            if rank:
                sent = dist.isend(torch.ones(size), 0, group=group)
            else:
                say(error_of(dist.recv, torch.zeros(4), 1, group=group))
            meet(f"after {size}", 0, 1)
        os._exit(0)
        """,
    )
    lines = said(done, 0)
    assert "8 bytes came for a tensor of 16" in lines[0]
    assert "24 bytes came for a tensor of 16" in lines[1]
    assert f"{4 << 20} bytes came for a tensor of 16" in lines[2]


def test_a_data_loader_that_forks_leaves_ucc_alone(job: Job) -> None:
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
            from rankdeck.c10d._ucc.group import ProcessGroup
            say(error_of(ProcessGroup, "new", dist.HashStore(), 0, 1, timedelta(seconds=5)))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
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
    done = job(
        2,
        """
        start()
        from rankdeck.c10d._ucc import api
        half = torch.ones(4, dtype=torch.float16)
        def action(vote):
            float16 = 10 << 3  # which UCC has a number for, and no addition
            team = dist.group.WORLD._place.team
            team.run(api.ALLREDUCE, dst=dist.group.WORLD._collectives._info(half, float16), op=api.SUM, flags=api.IN_PLACE)
        work = dist.group.WORLD._operations.submit("half", action, [half], None)
        say(error_of(work.wait))
        """,
    )
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
    done = job(
        2,
        """
        start()
        group = dist.new_group()
        dist.barrier()
        meet("past", 0, 1)
        from rankdeck.c10d._ucc.collectives import Collectives
        if rank == 1:
            Collectives.all_reduce = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        work = dist.irecv(torch.ones(1), 1, group=group) if rank == 0 else None
        say(error_of(dist.all_reduce, torch.ones(4)))
        say(error_of(work.wait))
        os._exit(0)
        """,
    )
    assert "all_reduce(4 x torch.float32, SUM) on rank 0" in said(done, 0)[0]
    assert "recv(1 x torch.float32, from rank 1, tag 0) on rank 0" in said(done, 0)[1]
    for line in said(done, 0):
        assert "the process of rank 1 has ended" in line


def test_a_rank_that_ends_does_no_harm_to_messages_between_others_nor_to_those_it_has_sent(job: Job) -> None:
    done = job(
        3,
        """
        start()
        store = dist.distributed_c10d._get_default_store()
        group = dist.new_group()
        first, second, third = torch.zeros(3), torch.zeros(3), torch.zeros(3)
        for source in (1, 2):
            if rank == source:
                dist.send(torch.ones(3), 0, group=group)
            elif rank == 0:
                dist.recv(first, source, group=group)
        dist.barrier()
        if rank == 2:
            dist.send(torch.full((3,), 2.0), 0, group=group)
            os._exit(0)
        if rank == 1:
            store.wait(["gone"])
            dist.send(torch.full((3,), 3.0), 0, group=group)
            store.wait(["over"])
            os._exit(0)
        work = dist.irecv(third, 1, group=group)
        while error_of(group._place.peers.check, 2) == "no error":
            time.sleep(0.01)
        dist.recv(second, 2, group=group)
        store.set("gone", "")
        work.wait()
        say([*second.tolist(), *third.tolist()])
        say(error_of(dist.recv, second, 2, group=group))
        store.set("over", "")
        os._exit(0)
        """,
    )
    values, error = said(done, 0)
    assert values == "[2.0, 2.0, 2.0, 3.0, 3.0, 3.0]"
    assert "the process of rank 2 has ended" in error


def test_a_collective_that_hangs_inside_ucc_ends_at_the_deadline(job: Job) -> None:
    done = job(
        2,
        """
        start()
        group = dist.new_group()
        dist.barrier(group)
        group.set_timeout(timedelta(seconds=1))
        from rankdeck.c10d._ucc.collectives import Collectives
        if rank == 1:
            Collectives.all_reduce = lambda *arguments: time.sleep(LONGEST)
        if rank == 0:
            say(error_of(dist.all_reduce, torch.ones(4), group=group))
            dist.all_reduce(after := torch.ones(1), group=dist.new_group([0], use_local_synchronization=True))
            say(after.item())
        else:
            dist.all_reduce(torch.ones(4), group=group, async_op=True)
        meet("said", 0, 1)
        os._exit(0)
        """,
    )
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
    done = job(
        2,
        """
        import socket
        start()
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))).close()
            except OSError:
                say("refused")
                break
            time.sleep(0.01)
        """,
    )
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
