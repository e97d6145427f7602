"""What ranks tell of their process groups becomes a sentence on who waits for whom."""

import contextlib
import json
import shlex
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.failures.collectives import Wait, are_stuck, compare
from engine.core.failures.flight_recorder import MAX_ENTRIES, MAX_LISTED, RankRecord, read_record, read_trace
from engine.core.failures.stacks import RankStack, story
from rankdeck import _collectives
from tests.support import from_table

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


def answer_of(words: str) -> str:
    """What a rank writes: its entries, with `; ` between them and the arguments of `entry` as words; `-`: it has none. Before them may stand
    `groups=NAME:BEGIN,END,STEP …` and `evicted`. Empty: the rank is silent."""
    *about, told = words.split(" | ")
    groups = {
        name: [[int(number) for number in span.split(",")]]
        for one in about
        for name, _, span in (group.partition(":") for group in one.removeprefix("groups=").split() if ":" in group)
    }
    entries = []
    for number, *more in map(shlex.split, told.split("; ") if told not in ("", "-") else ()):
        given: dict[str, Any] = dict(word.split("=", 1) for word in more if "=" in word)
        numbers = {name: float(given.pop(name)) for name in ("age", "size", "pg_id") if name in given}
        given |= {name: value if name == "age" else int(value) for name, value in numbers.items()}
        if "group" in given:
            given["group"] = tuple(given["group"].split(":"))
        entries.append(entry(int(number), done="done" in more, is_p2p="p2p" in more, **given))
    return line(*entries, groups=groups or None, evicted="evicted" in about) if words else ""


@from_table
def test_what_is_said_of_ranks_that_wait(answers: list[str], sentences: list[str]) -> None:
    assert said(*map(answer_of, answers)) == sentences


def test_a_rank_that_is_late_is_named_for_those_who_decide() -> None:
    (wait,) = compare({rank: read_record(answer_of(words)) for rank, words in enumerate(("57", "56 done", "57", "57"))})
    assert wait.late == (1,)
    assert compare({}) == []


def behind(last: int) -> str:
    return line(entry(last, done=True, age=60))


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


def test_of_many_tensors_the_first_are_shown() -> None:
    sizes = [[2, 3], [], *[[1]] * 8]
    waits = line(entry(1, "nccl:allreduce_coalesced", input_sizes=sizes, input_dtypes=["BFloat16"] * 10))
    assert "(2 x 3 x bfloat16, bfloat16, 1 x bfloat16 and 7 more)" in said(waits, waits, waits, behind(0))[0]


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
