"""Dumps of faulthandler become a few lines that say where every rank is."""

import faulthandler
import tempfile
import threading

from engine.core.failures.stacks import ChildStack, Frame, RankStack, doing, fold, parse, story
from engine.core.words import rank_ranges
from tests.support import entries

DUMP: str = entries("unit/stacks", "dump")


def dump(line: int = 33) -> str:
    return DUMP.replace("{line}", str(line))


def test_the_main_thread_is_the_last_and_frames_of_the_template_are_left_out() -> None:
    thread, main = parse(dump())
    assert thread[0] == Frame("/usr/lib/python3.11/threading.py", 982, "run")
    assert [frame.function for frame in main] == ["all_reduce", "train", "<module>"]


def test_the_newest_of_several_dumps_counts() -> None:
    assert parse(dump(1) + dump(2))[-1][-1].line == 2


def test_what_faulthandler_really_writes_is_understood() -> None:
    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = parse(file.read())
    other.set()
    thread.join()
    assert threads[-1][0].function == "test_what_faulthandler_really_writes_is_understood"
    assert any(frame.function == "wait" for frame in threads[0])


def test_ranks_in_the_same_place_are_told_once_and_the_largest_group_first() -> None:
    stacks = {0: dump(), 1: dump(), 2: dump(34), 3: dump(), 4: ""}
    groups = fold(stacks)
    assert [group.ranks for group in groups] == [(0, 1, 3), (2,), (4,)]
    assert [group.doing for group in groups[:2]] == ["waiting in all_reduce"] * 2
    lines = story([RankStack(rank=rank, text=text, reason="" if text else "stopped") for rank, text in stacks.items()])
    assert lines[0] == "ranks 0-1, 3: waiting in all_reduce"
    assert lines[-1] == "rank 4: no stack: stopped"
    assert "    and 1 other thread" in lines


def test_processes_below_ranks_are_told_after_the_ranks() -> None:
    children = [tuple(ChildStack(pid=pid, text=dump(9)) for pid in pids) for pids in ((31, 32), (31,))]
    stacks = [RankStack(rank=rank, text=dump(), children=of_rank) for rank, of_rank in enumerate(children)]
    lines = story(stacks)
    assert lines[0] == "ranks 0-1: waiting in all_reduce"
    assert "3 processes below ranks 0-1 (31, 32, 31): waiting in all_reduce" in lines
    many = tuple(ChildStack(pid=pid, text=dump()) for pid in range(20))
    assert "20 processes below rank 7 (0, 1, 2, 3, 4, 5, 6, 7, …): waiting in all_reduce" in story(
        [RankStack(rank=7, text=dump(), children=many)]
    )


def test_what_a_rank_is_at_is_said_in_words() -> None:
    def at(file: str, function: str) -> str:
        return doing([Frame(file, 7, function), Frame("/home/a/train.py", 3, "main")])

    assert at("/x/site-packages/torch/autograd/graph.py", "_engine_run_backward").startswith("in backward")
    assert at("/x/site-packages/torch/utils/data/dataloader.py", "_next_data") == "waiting for the data loader"
    session, news = "/x/python/rankdeck/elastic/_session.py", "/x/python/rankdeck/elastic/_store/news.py"
    assert at(session, "_await_next") == "waiting for a dead rank to come back"
    waits = [
        Frame("/x/threading.py", 3, "wait"),
        Frame(news, 4, "await_condition"),
        Frame(session, 5, "_is_peers_fault"),
    ]
    assert doing(waits) == "waiting to be told whether a rank has died"
    assert at("/x/site-packages/torch/nn/functional.py", "linear") == "in main (train.py:3)"
    assert doing([]) == "in no Python code"


def test_ranks_are_listed_in_ranges() -> None:
    assert rank_ranges([3]) == "rank 3"
    assert rank_ranges([5, 0, 2, 1]) == "ranks 0-2, 5"


def test_garbage_makes_no_stack_and_no_error() -> None:
    assert parse("no dump\n  File nowhere\n\x00\xff") == []
    assert story([RankStack(rank=0, text="garbage")])[0] == "rank 0: in no Python code"
