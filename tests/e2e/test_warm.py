"""A rank that is forked from the template is what `python script.py` would be: every case runs both ways."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_server import ROOM
from tests.support import entries, kill_hard

SAY = "import json, sys\ndef say(**what): print('SAID ' + json.dumps(what, default=str), flush=True)\n"

SAME = entries("e2e/warm", "same")  # whatever these print, to either stream, and how they end must be the same


@pytest.fixture(autouse=True)
def whole_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it matters what the imports of a template leave in a rank."""
    monkeypatch.setenv("RANKDECK_TESTS_TORCH", "whole")


NEIGHBOUR = entries("e2e/warm", "neighbour")

ENDING = 'int puts(const char *); __attribute__((destructor)) static void end(void) { puts("the library ends"); }'


def compile_library(path: Path) -> None:
    """Makes a library that says something at the end of the process."""
    command = [shutil.which("cc") or "gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=ENDING, text=True, check=True)


ALONE = ("training", "thread counts of torch")
"""What one rank has to itself. All others are attempts of a few runs, or each would wait for a template that imports torch."""

OF_NEW_PROCESSES = (
    "environment",
    "a library with an end of its own",
    "a stdout that can't be flushed",
    "a log that is written at the end",
    "a finalizer of an object that torch holds",
    "a process that has not ended",
    "a thread that computes",
)
"""What tests/forked_node.py does not do as a new process would."""

SECOND_RANK = "import os, signal\nwhile os.environ['RANK'] == '1': signal.pause()\n"
"""Keeps a run going when rank 0 has ended. The test kills it, and then the run can be restarted at once."""

IN_COMPANY = [case for case in SAME if case not in ALONE]


@pytest.mark.parametrize("part", range(4))
def test_forked_ranks_are_like_executed_ones(rankdeck, write_script, write_profile, work, part, monkeypatch):
    (work / "neighbour.py").write_text(NEIGHBOUR)
    compile_library(work / "ending.so")
    cases = IN_COMPANY[part::4]
    cold, warm = (attempts_of(rankdeck, write_script, write_profile, cases, warm) for warm in (False, True))
    assert [(case, cold[case], warm[case]) for case in cases if warm[case] != cold[case]] == []
    monkeypatch.delenv("RANKDECK_TESTS_TORCH")
    cases = [case for case in cases if case not in OF_NEW_PROCESSES]
    forked = attempts_of(rankdeck, write_script, write_profile, cases, True, threads=1)
    assert [(case, cold[case], forked[case]) for case in cases if forked[case] != cold[case]] == []


def attempts_of(
    rankdeck, write_script, write_profile, cases: list[str], warm: bool, threads: int | None = None
) -> dict[str, tuple[Any, ...]]:
    """Runs each case as an attempt of one run. Returns what became of rank 0 by case: its exit, what it printed, and its errors."""
    script = write_script("script.py", "")
    launch = {"warm": warm, "on_failure": "hold", "stop_ladder": [["SIGKILL", 5]]}
    env = {"OMP_NUM_THREADS": str(threads or len(os.sched_getaffinity(0)))}  # as for a rank that is alone
    recipe = {"script": str(script), "args": ["--a", "b c"]}
    profile, run, exits = write_profile(recipe, ranks=2, launch=launch, env=env), "", []
    for attempt, case in enumerate(cases):
        script.write_text(SAY + SECOND_RANK + SAME[case], encoding="utf-8")
        if attempt == 0:
            run = rankdeck.launch(profile)
        else:
            assert f"attempt {attempt}" in rankdeck("restart", run).stdout
        status = rankdeck.wait_status(run, has_ended(attempt), what=case)
        exits.append(status["ranks"][0]["exit"])
        kill_hard(status["ranks"][1]["pid"])
        rankdeck.wait_state(run, "holding")
    assert is_fork(rankdeck.agent(run)) == (threads is not None)
    rankdeck("stop", run)
    rankdeck.wait_state(run, "failed")
    assert ("ModulesImported" in (rankdeck.folder(run) / "journal.jsonl").read_text()) == warm
    said = [
        [rankdeck.log(run, 0, stream, attempt).decode().replace(run, "RUN") for stream in ("out", "err")]
        for attempt in range(len(cases))
    ]
    return {case: (exits[number], *said[number]) for number, case in enumerate(cases)}


def is_fork(pid: int) -> bool:
    """Whether a process was not executed: it keeps the room for the variables of whatever was forked."""
    return len(Path(f"/proc/{pid}/environ").read_bytes()) > len(ROOM["ROOM"])


def has_ended(attempt: int) -> Callable[[dict[str, Any]], bool]:
    """Whether rank 0 of an attempt has ended, and rank 1 has a process."""
    return lambda status: (
        status["attempt"] == attempt
        and all(rank["attempt"] == attempt and rank["pid"] for rank in status["ranks"])
        and status["ranks"][0]["exit"] is not None
    )


@pytest.mark.parametrize("case", ALONE)
def test_a_forked_rank_is_like_an_executed_one(rankdeck, write_script, work, case, launch):
    script = write_script("script.py", SAY + SAME[case])
    found = {}
    for warm in (False, True):
        run = launch({"script": str(script), "args": ["--a", "b c"]}, launch={"warm": warm, "on_failure": "stop"})
        rankdeck("wait", run)
        (rank,) = rankdeck.status(run)["ranks"]
        both = [rankdeck.log(run, 0, stream).decode().replace(run, "RUN") for stream in ("out", "err")]
        found[warm] = (rank["exit"], *both)
        assert ("ModulesImported" in (rankdeck.folder(run) / "journal.jsonl").read_text()) == warm
    assert found[True] == found[False]


@pytest.mark.parametrize("text", ["", "raise ValueError('wrong')"])
def test_a_module_is_run_as_a_module(rankdeck, work, text, launch):
    (work / "pkg").mkdir()
    (work / "pkg" / "__init__.py").touch()
    (work / "pkg" / "job.py").write_text(
        SAY
        + f"import pkg\nsay(name=__name__, argv=sys.argv, spec=__spec__.name, package=__package__, path=sys.path[0])\n{text}\n"
    )
    found = {}
    for warm in (False, True):
        run = launch({"module": "pkg.job", "args": ["x"]}, launch={"warm": warm, "on_failure": "stop"})
        rankdeck("wait", run)
        found[warm] = (rankdeck.log(run, 0), rankdeck.log(run, 0, "err"), rankdeck.status(run)["ranks"][0]["exit"])
    assert found[True] == found[False]
    assert b'"pkg.job"' in found[True][0]


def test_every_rank_has_random_numbers_of_its_own(rankdeck, launch):
    text = "import random, secrets, uuid, tempfile, numpy, torch, multiprocessing\nsay(numbers=[random.random(), numpy.random.rand(), secrets.token_hex(), str(uuid.uuid4()), tempfile.mktemp(), multiprocessing.current_process().authkey.hex(), torch.initial_seed(), torch.rand(1).item()])"
    run = launch(SAY + text, ranks=3, launch={"warm": True})
    rankdeck("wait", run)
    rows = [json.loads(rankdeck.log(run, rank).split(b" ", 1)[1])["numbers"] for rank in range(3)]
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [3] * 8


def test_what_a_rank_shares_with_the_template_is_not_taken_apart(rankdeck, launch):
    """What a module of the template holds would be deleted with it. That it is not, shows that the interpreter did not end this rank."""
    text = "import torch.distributed as dist\ndist.init_process_group('gloo')\nimport json\nclass Last:\n    def __del__(self): print('deleted')\njson.kept = Last()\nprint('end')"
    said = {}
    for warm in (False, True):
        run = launch(text, launch={"warm": warm})
        rankdeck("wait", run)
        said[warm] = rankdeck.log(run, 0)
    assert said[False] == b"end\ndeleted\n"
    assert said[True] == b"end\n"


def test_torch_compile_works_in_a_forked_rank(rankdeck, launch):
    text = "import torch\nf = torch.compile(lambda x: (x * 2).sin().sum(), backend='aot_eager')\nsay(ok=torch.allclose(f(torch.ones(3)), (torch.ones(3) * 2).sin().sum()))"
    run = launch(SAY + text, launch={"warm": True})
    rankdeck("wait", run)
    assert b'{"ok": true}' in rankdeck.log(run, 0), rankdeck.log(run, 0, "err")
