"""What is said of labelled failures, and the entries of the knowledge base: each is shown by real words, says what it means, and takes no time on
hostile text.

Cases are in `tests/data/failures`: `recorded.toml` for logs in a file each, `open.toml` and `own.toml` for texts. Keys of a case: `mode` (`rank`: of
one process with its `status`, or of several in `[[case.status]]`; `log`: of a whole job; `both`), `text` or `file`, `cause_any` (one of them must
begin a word of what is said), `cause_none` (known wrong answers), `rank`, `exception` (must be shown), `cause` (the id), `says` (a part of what is said).
"""

import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import regex

from engine.core.failures.known import Cause, Kind, causes, find, find_all, literals
from engine.core.failures.launcher_log import read_log
from engine.core.failures.verdict import Verdict, Witness, find_verdict
from tests.support import entries, from_table

FAILURES = Path(__file__).resolve().parents[1] / "data" / "failures"
CASES: list[dict[str, Any]] = [
    case
    for name in ("recorded", "open", "own")
    for case in tomllib.loads((FAILURES / f"{name}.toml").read_text())["case"]
]
ASIDE = re.compile(r"\b(?:also|earlier|handled|harmless)\b.*", re.DOTALL)
"""Known wrong answers may stand behind one of these words."""


def text_of(case: dict[str, Any]) -> str:
    if "file" in case:
        return (FAILURES / str(case["file"])).read_text(errors="replace")
    return str(case.get("text") or "\n".join(one["text"] for one in case["status"]))


def verdicts(case: dict[str, Any]) -> list[tuple[str, Verdict | None]]:
    found = []
    if case["mode"] != "rank":
        found.append(("log", find_verdict(read_log(text_of(case)))))
    if case["mode"] != "log":
        status = case.get("status", 1)
        ends = status if isinstance(status, list) else [{"rank": 1, "status": status, "text": case["text"]}]
        told = [
            Witness(
                rank=one["rank"],
                output=one["text"].encode(),
                failed=one["status"] != 0,
                status=one["status"],
                order=(number,),
            )
            for number, one in enumerate(ends)
        ]
        found.append(("rank", find_verdict(told)))
    return found


def squeezed(text: str) -> str:
    return " ".join(text.split())


def begins_a_word(word: str, text: str) -> bool:
    return re.search(r"(?<![a-z0-9])" + re.escape(word), text) is not None


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_failure_has_its_cause(case: dict[str, Any]) -> None:
    for mode, verdict in verdicts(case):
        if case.get("cause") == "":
            assert verdict is None
            continue
        assert verdict is not None
        assert verdict.hint
        said = squeezed(f"{verdict.headline} | {verdict.detail} | {verdict.hint} | {verdict.fix}")
        claims = " | ".join(ASIDE.sub("", part) for part in said.lower().split(" | "))
        assert not [word for word in case.get("cause_none", ()) if begins_a_word(word, claims)], said
        if wanted := case.get("cause_any"):
            assert any(begins_a_word(word, said.lower()) for word in wanted), said
        shown = squeezed(" ".join((verdict.headline, verdict.detail, *verdict.evidence, verdict.traceback)))
        assert squeezed(case.get("exception", "")) in shown
        assert squeezed(case.get("says", "")) in squeezed(f"{verdict.headline} {verdict.detail}")
        if "cause" in case:
            assert (verdict.cause, verdict.rank) == (case["cause"], case.get("rank"))
        elif "rank" in case and (mode == "log" or isinstance(case.get("status"), list)):
            assert verdict.rank == case["rank"]


def test_every_recording_has_a_case_with_its_source() -> None:
    recorded = [case for case in CASES if "file" in case]
    assert sorted(case["file"] for case in recorded) == sorted(path.name for path in FAILURES.glob("*.txt"))
    assert all(case["source"].startswith(("recorded: ", "composed: ")) for case in recorded)


def test_no_recording_tells_of_the_machine_that_it_was_made_on() -> None:
    for path in FAILURES.glob("*.txt"):
        assert not re.search(r"/root/|/tmp/rd|@vm\b", path.read_text(errors="replace")), path.name


# --- entries ---------------------------------------------------------------------------------------------------------

KINDS: tuple[Kind, ...] = ("cause", "consequence", "end", "remark", "messenger", "place")
TEXTS = [text_of(case) for case in CASES]


def first_cause(text: str) -> str:
    return next((found.cause.id for kind in KINDS if (found := find(text, kind))), "")


@pytest.mark.parametrize("cause", causes(), ids=lambda cause: f"{cause.id} {cause.pattern[:30]}")
def test_an_entry_is_complete_and_names_only_groups_that_it_has(cause: Cause) -> None:
    assert re.fullmatch(r"[BCDEFGHIKMNPRSTUW]\d{1,2}", cause.id)
    groups = dict.fromkeys((*regex.compile(cause.pattern).groupindex, *regex.compile(cause.needs).groupindex), "x")
    groups["python"] = "python3"
    groups |= {"node": "gpu01", "job": "1234"} if cause.speaker else {}
    assert cause.hint.format(**groups)
    cause.detail.format(**groups)
    cause.fix.format(**groups)
    cause.blames.format(**groups, who="rank 1")
    assert "\n" not in cause.fix
    assert cause.speaker or literals(cause.pattern) != ("",)


@pytest.mark.parametrize(
    "cause", [one for one in causes() if not one.speaker], ids=lambda cause: f"{cause.id} {cause.pattern[:30]}"
)
def test_an_entry_is_shown_by_a_text(cause: Cause) -> None:
    texts = cause.examples or TEXTS
    shown = [found for text in texts if (found := regex.search(cause.pattern, text, regex.MULTILINE))]
    assert len(shown) == len(cause.examples) if cause.examples else shown
    assert all(any(word in found[0].lower() for word in literals(cause.pattern)) for found in shown)


@from_table
def test_what_each_match_contains_is_read_from_a_pattern(pattern: str, texts: list[str]) -> None:
    assert list(literals(pattern)) == texts


def test_what_a_text_puts_into_a_command_is_one_word() -> None:
    found = find("ssh: Could not resolve hostname $(touch/pwned)`x`;y: Name or service not known")
    assert found is not None
    assert found.fix == "getent hosts '$(touch/pwned)`x`;y'"


def test_the_more_special_of_two_causes_is_found() -> None:
    both = "unhandled system error\nLast error:\nBootstrap : no socket interface found\n"
    assert first_cause(both) == first_cause("\n".join(reversed(both.split("\n")))) == "N2"


@from_table
def test_another_backend_is_proposed_only_where_the_backend_is_nccl(words: str, is_nccl: bool) -> None:
    found = find(words)
    assert found is not None
    assert ("gloo" in f"{found.hint} {found.fix}") == is_nccl


# --- hostile text ----------------------------------------------------------------------------------------------------

BITS = entries("unit/causes", "bits")


@pytest.mark.parametrize("bit", BITS)
def test_no_pattern_takes_long_on_hostile_text(bit: str) -> None:
    text = (bit * 70_000)[:70_000]
    begin = time.process_time()
    for kind in KINDS:
        find(text, kind)
        for _ in find_all(text, kind):
            pass
    assert time.process_time() - begin < 10
