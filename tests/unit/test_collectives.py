"""What ranks tell of their process groups becomes a sentence on who waits for whom."""

import contextlib
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.failures.collectives import MAX_SENTENCES, MIN_WAIT, Wait, are_stuck, compare
from engine.core.failures.flight_recorder import MAX_ENTRIES, MAX_LISTED, RankRecord, read_record, read_trace
from engine.core.failures.stacks import RankStack, story
from rankdeck import _collectives

NOW = 1_790_000_000_000_000_000
DEFAULT = ("0", "default_pg")


def entry(
    number: int,
    name: str = "gloo:all_reduce",
    *,
    size: int = 4,
    kind: str = "Float",
    done: bool = False,
    age: float = 12,
    group: tuple[str, str] = DEFAULT,
    **more: Any,
) -> dict[str, Any]:
    """One of the flight recorder's."""
    sizes = {"input_sizes": [[size]], "input_dtypes": [kind]} if kind else {"input_sizes": [], "input_dtypes": []}
    created = NOW - int(age * 1e9)
    return {
        "process_group": list(group),
        "pg_id": 0,
        "collective_seq_id": number,
        "profiling_name": name,
        "is_p2p": False,
        "retired": done,
        "state": "scheduled",
        "time_created_ns": created,
        **sizes,
        **more,
    }


def line(*entries: dict[str, Any], groups: dict[str, list[list[int]]] | None = None, evicted: bool = False) -> str:
    """What a rank writes."""
    spans = {"0": [[0, 4, 1]]} if groups is None else groups
    return json.dumps({"now": NOW, "evicted": evicted, "groups": spans, "entries": entries}) + "\n"


def said(*ranks: str) -> list[str]:
    """The sentences on ranks 0, 1, 2…"""
    return [wait.sentence for wait in compare({rank: read_record(text) for rank, text in enumerate(ranks)})]


def behind(last: int) -> str:
    return line(entry(last, done=True, age=60))


def test_a_rank_that_has_not_called_it_is_named_and_so_are_those_that_wait() -> None:
    waits = line(entry(56, done=True), entry(57))
    assert said(waits, behind(56), waits, waits) == [
        "rank 1 has not called all_reduce #57 of default_pg (4 x float32); ranks 0, 2, 3 wait in it for 12 s"
    ]
    (wait,) = compare({0: read_record(waits), 1: read_record(behind(56)), 2: read_record(waits), 3: read_record(waits)})
    assert wait.late == (1,)


def test_it_is_the_oldest_under_way_that_matters_not_the_newest() -> None:
    ahead = line(entry(57, age=9), entry(58, age=8), entry(59, "gloo:broadcast", age=7))
    assert said(ahead, behind(55), behind(56), ahead) == [
        "ranks 1, 2 have not called all_reduce #57 of default_pg (4 x float32); ranks 0, 3 wait in it for 9 s"
    ]


def test_a_rank_that_has_called_nothing_at_all_is_late() -> None:
    assert said(line(entry(1)), line(), line(entry(1)), line(entry(1)))[0].startswith(
        "rank 1 has not called all_reduce #1 "
    )


def test_one_that_has_forgotten_what_it_called_is_not_accused() -> None:
    waits = line(entry(57))
    assert said(waits, line(evicted=True), waits, waits) == [
        "ranks 0, 2, 3 wait in all_reduce #57 of default_pg (4 x float32) for 12 s; rank 1 does not report its collectives"
    ]


def test_ranks_that_are_silent_are_told() -> None:
    waits = line(entry(57))
    assert said(waits, "", waits, "\n") == [
        "ranks 0, 2 wait in all_reduce #57 of default_pg (4 x float32) for 12 s; ranks 1, 3 do not report their collectives"
    ]


def test_different_operations_are_set_side_by_side() -> None:
    one, other = line(entry(57)), line(entry(57, "gloo:broadcast", size=7))
    assert said(one, other, one, one) == [
        "ranks call different operations as #57 of default_pg: ranks 0, 2, 3 all_reduce(4 x float32), rank 1 broadcast(7 x float32)"
    ]


@pytest.mark.parametrize(
    ("waits", "stuck"),
    [
        ([Wait(sentence="", late=(1,), waiting=(0,))], False),
        ([Wait(sentence="", late=(1,), waiting=(0,)), Wait(sentence="", late=(0,), waiting=(1,))], True),
        ([Wait(sentence="", late=(), waiting=(0, 1))], False),
        ([Wait(sentence="", late=(), waiting=(0, 1), different=True)], True),
    ],
)
def test_ranks_are_stuck_if_all_that_others_wait_for_wait_themselves(waits: list[Wait], stuck: bool) -> None:
    assert are_stuck(waits) == stuck


def test_the_other_operation_may_be_over_where_it_waited_for_nobody() -> None:
    gone = line(entry(57, "gloo:broadcast", size=7, done=True), entry(58))
    assert said(line(entry(57)), gone, line(entry(57)), behind(56)) == [
        "ranks call different operations as #57 of default_pg: ranks 0, 2 all_reduce(4 x float32), rank 1 broadcast(7 x float32); "
        "rank 3 has not called it"
    ]


@pytest.mark.parametrize(("size", "kind", "shown"), [(7, "Float", "7 x float32"), (4, "Double", "4 x float64")])
def test_sizes_and_types_that_differ_are_told(size: int, kind: str, shown: str) -> None:
    one, other = line(entry(57)), line(entry(57, size=size, kind=kind))
    assert said(one, one, one, other) == [
        f"ranks call different operations as #57 of default_pg: ranks 0, 1, 2 all_reduce(4 x float32), rank 3 all_reduce({shown})"
    ]


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:scatter", "gloo:gather", "nccl:ALLGATHER_coalesced"])
def test_sizes_that_may_differ_are_no_disagreement(name: str) -> None:
    one, other = line(entry(3, name)), line(entry(3, name, size=9))
    assert said(one, other, one, one)[0].startswith("all ranks of default_pg are in ")


def test_where_all_are_in_it_that_is_said() -> None:
    all_in = line(entry(57, age=400))
    assert said(*[all_in] * 4) == ["all ranks of default_pg are in all_reduce #57 (4 x float32) for 7 min"]


def test_ranks_that_have_left_it_are_told() -> None:
    left = line(entry(57, done=True))
    assert said(line(entry(57)), left, left, left) == [
        "rank 0 waits in all_reduce #57 of default_pg (4 x float32) for 12 s; ranks 1, 2, 3 have left it"
    ]


def test_nothing_is_said_of_a_run_that_goes_on() -> None:
    assert said(*[behind(9)] * 4) == []
    assert said(line(entry(57, age=MIN_WAIT / 2)), behind(56), behind(56), behind(56)) == []
    assert said("", "", "") == []
    assert compare({}) == []


def test_a_barrier_has_no_tensors() -> None:
    assert said(line(entry(3, "gloo:barrier", kind="")), *[behind(2)] * 3) == [
        "ranks 1, 2, 3 have not called barrier #3 of default_pg; rank 0 waits in it for 12 s"
    ]


def test_of_many_tensors_the_first_are_shown() -> None:
    sizes = [[2, 3], [], *[[1]] * 8]
    waits = line(entry(1, "nccl:allreduce_coalesced", input_sizes=sizes, input_dtypes=["BFloat16"] * 10))
    assert "(2 x 3 x bfloat16, bfloat16, 1 x bfloat16 and 7 more)" in said(waits, waits, waits, behind(0))[0]


def test_a_state_of_nccl_that_says_completed_is_the_end_though_the_watchdog_has_not_come_by() -> None:
    assert said(*[line(entry(3, "nccl:all_reduce", state="completed"))] * 4) == []


# --- groups ----------------------------------------------------------------------------------------------------------

HALVES = ("5", "undefined")


def test_who_is_not_in_a_group_is_not_missing() -> None:
    groups = {"0": [[0, 4, 1]], "5": [[0, 4, 2]]}
    waits = line(entry(2, group=HALVES), groups=groups)
    late = line(entry(1, done=True, group=HALVES), groups=groups)
    assert said(waits, line(), late, line()) == [
        "rank 2 has not called all_reduce #2 of group 5 (4 x float32); rank 0 waits in it for 12 s"
    ]


def test_groups_of_one_name_on_other_ranks_are_two() -> None:
    even, odd = {"5": [[0, 4, 2]]}, {"5": [[1, 4, 2]]}
    assert said(
        line(entry(2, group=HALVES, age=5), groups=even),
        line(entry(9, group=HALVES, age=8), groups=odd),
        line(entry(1, done=True, group=HALVES), groups=even),
        line(entry(9, group=HALVES, age=8), groups=odd),
    ) == [
        "all ranks of group 5 are in all_reduce #9 (4 x float32) for 8 s",
        "rank 2 has not called all_reduce #2 of group 5 (4 x float32); rank 0 waits in it for 5 s",
    ]


def test_a_member_that_has_not_made_the_group_yet_is_late() -> None:
    waits = line(entry(1, group=HALVES), groups={"5": [[0, 2, 1]]})
    assert said(waits, line(groups={}), line(groups={}))[0].startswith(
        "rank 1 has not called all_reduce #1 of group 5 "
    )


def test_over_each_backend_a_group_has_numbers_of_its_own() -> None:
    waits = line(entry(9, pg_id=5, done=True), entry(3, "nccl:all_reduce", pg_id=2))
    late = line(entry(3, pg_id=5, done=True), entry(2, "nccl:all_reduce", pg_id=2, done=True))
    assert said(waits, waits, late, waits) == [
        "rank 2 has not called all_reduce #3 of default_pg over nccl (4 x float32); ranks 0, 1, 3 wait in it for 12 s"
    ]


def test_a_group_that_waits_over_both_of_its_backends_is_told_twice() -> None:
    one, other = (
        line(entry(3), entry(5, "nccl:broadcast", done=True)),
        line(entry(2, done=True), entry(6, "nccl:broadcast")),
    )
    assert said(one, other, one, other) == [
        "ranks 1, 3 have not called all_reduce #3 of default_pg over gloo (4 x float32); ranks 0, 2 wait in it for 12 s",
        "ranks 0, 2 have not called broadcast #6 of default_pg over nccl (4 x float32); ranks 1, 3 wait in it for 12 s",
    ]


def test_what_a_rank_did_in_another_group_of_that_name_does_not_count() -> None:
    waits = line(entry(2, group=HALVES), groups={"5": [[0, 2, 1]]})
    elsewhere = line(entry(9, group=HALVES, done=True), groups={"5": [[1, 4, 2]]})
    assert said(waits, elsewhere)[0].startswith("rank 1 has not called all_reduce #2 of group 5 ")


def test_who_has_waited_longest_comes_first_and_few_are_told() -> None:
    groups = {str(number): [[0, 2, 1]] for number in range(9)}
    waits = line(
        *(entry(1, group=(str(number), f"layer {number}"), age=10 + number) for number in range(9)), groups=groups
    )
    sentences = said(waits, line(groups=groups))
    assert len(sentences) == MAX_SENTENCES
    assert "of layer 8 " in sentences[0]
    assert "of layer 7 " in sentences[1]


def test_of_a_group_that_was_made_anew_the_old_operations_are_no_more() -> None:
    waits = line(entry(2, pg_id=0), entry(5, pg_id=3, age=7))
    late = line(entry(57, pg_id=0, done=True), entry(4, pg_id=3, done=True))
    assert said(waits, late, waits, waits)[0].startswith("rank 1 has not called all_reduce #5 ")


# --- sends and receives ----------------------------------------------------------------------------------------------


def test_a_receive_that_waits_is_told_after_collectives() -> None:
    receives = line(entry(0, "nccl:recv 0<-1", is_p2p=True, age=90))
    waits = line(entry(7, "nccl:all_reduce", age=5))
    assert said(receives, waits, waits, waits) == [
        "rank 0 has not called all_reduce #7 of default_pg (4 x float32); ranks 1, 2, 3 wait in it for 5 s",
        "rank 0 waits in recv 0<-1 of default_pg (4 x float32) for 90 s",
    ]


def test_a_transfer_that_is_done_makes_nobody_late() -> None:
    assert said(*[line(entry(0, "nccl:send 1->0", is_p2p=True, done=True))] * 2) == []


def test_one_that_has_kept_nothing_but_transfers_is_not_accused() -> None:
    sends = [entry(0, "nccl:send 1->2", is_p2p=True, done=True)] * 8
    waits = line(entry(7, "nccl:broadcast"))
    assert said(waits, line(*sends, evicted=True), waits, waits)[0].endswith("; rank 1 does not report its collectives")
    assert said(waits, line(*sends), waits, waits)[0].startswith("rank 1 has not called broadcast #7 ")


# --- rankdeck's own backends -----------------------------------------------------------------------------------------


def test_what_rankdecks_own_backends_say_is_taken_apart() -> None:
    waits = line(entry(6, "all_reduce(7 x torch.float32, SUM)", kind=""))
    done = line(entry(5, "", kind="", done=True))
    assert said(waits, done, waits, waits) == [
        "rank 1 has not called all_reduce #6 of default_pg (7 x float32, SUM); ranks 0, 2, 3 wait in it for 12 s"
    ]


def test_one_that_is_done_without_a_name_is_no_disagreement() -> None:
    done = line(entry(6, "", kind="", done=True))
    waits = line(entry(6, "all_reduce(7 x torch.float32, SUM)", kind=""))
    assert said(waits, done, done, done) == [
        "rank 0 waits in all_reduce #6 of default_pg (7 x float32, SUM) for 12 s; ranks 1, 2, 3 have left it"
    ]


# --- what is read ----------------------------------------------------------------------------------------------------


def test_the_newest_line_counts() -> None:
    assert read_record(behind(9) + line()) == read_record(line())


@pytest.mark.parametrize(
    "text",
    ["", "\n", "{", "[]", "{}", '{"now": 1}', line(groups={"0": [[0, 4, 0]]}), line(entry(-1)), line(entry(1 << 80)),
     line(entry(1, input_sizes=[4])), line(entry(1, input_dtypes="Float")), '{"more":' + "[" * 60_000, line(entry(1, input_sizes=[[-4]])),
     line(entry(1, time_created_ns=10**400)), line(entry(1, process_group="0")), line(entry(1, retired="yes"))],
)  # fmt: skip
def test_what_is_no_answer_is_silence(text: str) -> None:
    assert read_record(text) is None


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_no_value_is_more_than_a_value_error(value: object) -> None:
    assert read_record(json.dumps(value)) is None
    with contextlib.suppress(ValueError):
        assert isinstance(read_trace(value), RankRecord)


def test_a_name_of_any_length_is_shortened() -> None:
    (sentence,) = said(line(entry(1, "x" * 10_000, group=("0", "y" * 10_000)), groups={}))
    assert len(sentence) < 1000


def test_names_of_any_kind_become_one_harmless_line() -> None:
    waits = {"entries": [entry(1, "nccl:all\n\x1b[31m", group=("0", "layer\r\ud800\u202e"), kind="\x9b")]}
    (wait,) = compare({0: read_trace(waits)})
    assert wait.sentence.isprintable()
    assert wait.sentence.encode()
    assert "of layer\\r\\ud800\\u202e are in all\\n\\x1b[31m #1" in wait.sentence


@pytest.mark.slow
def test_of_one_list_many_times_over_only_a_part_is_taken() -> None:
    """A trace of some KiB, whose lists are one and the same, could else become one of GiBs."""
    size = [1] * 100_000
    own = {"input_sizes": [size] * 100_000, "input_dtypes": ["Float" * 100_000] * 100_000}
    told = read_trace({"entries": [{**entry(1), **own}] * (MAX_ENTRIES + 5)})
    (group,) = told.groups.values()
    assert len(group.operations) == MAX_ENTRIES
    with pytest.raises(ValueError, match="it lists too many groups and ranks"):
        read_trace({"pg_config": {str(name): {"ranks": "7" * (MAX_LISTED >> 4)} for name in range(17)}})


def test_a_trace_of_nccl_is_read_with_the_ranks_of_its_groups() -> None:
    waits = {"entries": [{**entry(3, "nccl:all_reduce"), "process_group": ("5", "mesh_tp"), "record_id": 0, "frames": []}],
             "pg_config": {"5": {"name": "5", "desc": "mesh_tp", "ranks": "[0, 2]"}}}  # fmt: skip
    nothing = {"entries": [], "pg_config": {"5": {"name": "5", "desc": "mesh_tp", "ranks": "[0, 2]"}}}
    told = {0: read_trace(waits), 1: None, 2: read_trace(nothing)}
    assert [wait.sentence for wait in compare(told)] == [
        "rank 2 has not called all_reduce #3 of mesh_tp (4 x float32); rank 0 waits in it"
    ]


def test_the_stacks_of_a_run_begin_with_it() -> None:
    waits = line(entry(57), groups={"0": [[0, 2, 1]]})
    lines = story([RankStack(rank=0, reason="stopped", collectives=waits), RankStack(rank=1, reason="stopped")])
    assert lines[0].startswith("rank 0 waits in all_reduce #57")
    assert lines[1:] == ["", "ranks 0-1: no stack: stopped"]


# --- what a rank answers ---------------------------------------------------------------------------------------------


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A rank's answer where torch has recorded these entries, and has these groups."""

    def answer(*entries: dict[str, Any], groups: dict[str, list[int]] | None = None) -> str:
        recorded = json.dumps({"entries": [{**one, "record_id": 0} for one in entries]})
        ranks = {"0": [0, 1, 2, 3]} if groups is None else groups
        world = SimpleNamespace(pg_names={name: name for name in ranks}, pg_group_ranks=ranks)
        library = SimpleNamespace(_dump_fr_trace_json=lambda: recorded)
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", library)
        monkeypatch.setattr(_collectives, "time", SimpleNamespace(time_ns=lambda: NOW))
        text = _collectives._line()
        assert len(text) <= _collectives.MAX_LINE
        return text

    return answer


def test_sends_do_not_crowd_collectives_out_of_an_answer(answer: Callable[..., str]) -> None:
    sends = [entry(0, "nccl:send 1->2", is_p2p=True, done=True)] * 9
    source = answer(entry(6, "nccl:broadcast", done=True), *sends)
    waits = answer(entry(6, "nccl:broadcast"))
    assert said(waits, source, waits, waits) == [
        "ranks 0, 2, 3 wait in broadcast #6 of default_pg (4 x float32) for 12 s; rank 1 has left it"
    ]


def test_neither_backend_of_a_group_crowds_the_other_out(answer: Callable[..., str]) -> None:
    done = [entry(number, done=True) for number in range(10, 20)]
    read = read_record(answer(entry(3, "nccl:all_reduce"), *done))
    assert read is not None
    assert set(read.groups) == {("0", "nccl"), ("0", "gloo")}


def test_an_operation_of_a_thousand_tensors_silences_no_group(answer: Callable[..., str]) -> None:
    many: dict[str, Any] = {"input_sizes": [[4, 4]] * 1000, "input_dtypes": ["Float"] * 1000}
    text = answer(*(entry(number, "nccl:allreduce_coalesced", **many) for number in range(1, 9)))
    assert "(4 x 4 x float32, 4 x 4 x float32, 4 x 4 x float32 and 13 more)" in said(text, text, text, text)[0]


@pytest.mark.slow
def test_a_group_that_is_too_long_to_tell_silences_that_group_alone(answer: Callable[..., str]) -> None:
    uneven = [rank * rank for rank in range(4000)]
    groups = {"0": list(range(4)), "7": uneven}
    text = answer(entry(1, group=("7", "odd")), entry(2), groups=groups)
    assert said(text, answer(entry(1, done=True), groups=groups), text, text) == [
        "rank 1 has not called all_reduce #2 of default_pg (4 x float32); ranks 0, 2, 3 wait in it for 12 s"
    ]
    read = read_record(text)
    assert read is not None
    assert read.is_evicted


def test_groups_without_operations_take_no_room(answer: Callable[..., str]) -> None:
    groups = {str(name): list(range(4)) for name in range(5000)}
    assert said(*[answer(entry(2), groups=groups)] * 4)[0].startswith("all ranks of default_pg are in ")
