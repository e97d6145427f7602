"""`launch.preload`: modules are imported once, before ranks are forked; one that ranks can't share is left out, and the launch goes on."""

from typing import Any

import pytest

from tests.support import Deck, entries, parent_of, wait_until

SHARED = "import os\nWHO = os.getpid()\nos.environ['FROM_IMPORT'] = 'yes'\n"
REPORT = entries("e2e/preload", "report")


@pytest.fixture
def launch(rankdeck, write_script, write_profile, work):
    """Launches ranks that tell which modules were there before them; `modules`: text by name, all in `launch.preload`."""

    def launch(modules: dict[str, str], *more: str, script: str = REPORT, ranks: int = 2, **sections: Any):
        for name, text in {"shared": SHARED, **modules}.items():
            write_script(f"installed/{name}.py", text)
        sections["launch"] = {"warm": True, "preload": ["shared", *modules, *more], **sections.get("launch", {})}
        env = {"PYTHONPATH": str(work / "installed")}
        return rankdeck.launch(write_profile(script, ranks=ranks, env=env, **sections))

    return launch


@pytest.fixture
def executed(monkeypatch):
    """Templates are executed: modules and frames of a fork of tests would count as what the script has imported. See tests/forked_node.py."""
    monkeypatch.setenv("RANKDECK_TESTS_EXECUTED", "yes")


def reports(deck: Deck, run: str, attempt: int = 0, ranks: int = 2) -> list[list[str]]:
    """What each rank has printed after `up`."""
    return [deck.wait_log(run, rank, b"up", attempt=attempt).decode().split()[1:] for rank in range(ranks)]


def left_out(deck: Deck, run: str) -> list[str]:
    return [event["text"] for event in deck.journal(run) if event.get("check") == "preload"]


def test_ranks_share_one_import(rankdeck, launch):
    run = launch({})
    assert rankdeck("wait", run).returncode == 0
    first, second = reports(rankdeck, run)
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] == second[1:] == [first[1], "yes", "shared"]
    assert left_out(rankdeck, run) == []
    (imported,) = [event for event in rankdeck.journal(run) if event["event"] == "ModulesImported"]
    assert ([name for name, _ in imported["modules"]], imported["earlier"]) == (["torch", "shared"], False)


LAST_WORDS = entries("e2e/preload", "last_words")


@pytest.mark.parametrize(("module", "left"), [("triton", "none"), ("other", "frozen")])
def test_extensions_that_look_for_leaks_find_nothing_frozen_at_the_end_of_a_rank(
    rankdeck, launch, monkeypatch, module: str, left: str
):
    monkeypatch.setenv("RANKDECK_TESTS_TORCH", "whole")
    run = launch({module: ""}, script=LAST_WORDS, ranks=1)
    assert rankdeck("wait", run).returncode == 0
    assert reports(rankdeck, run, ranks=1) == [[left]]


def test_a_restart_shares_the_same_import(rankdeck, launch):
    run = launch({}, script=f"{REPORT}\nimport time\nwhile True: time.sleep(0.1)\n")
    first = reports(rankdeck, run)
    assert {int(report[1]) for report in first} == {parent_of(rankdeck.pids(run)[0])}
    rankdeck("restart", run)
    assert reports(rankdeck, run, attempt=1) == first


def test_what_ranks_can_not_share_is_left_out_with_the_reason(rankdeck, launch):
    modules = {
        "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "reads": "import os\nSIZE = os.environ.get('WORLD_SIZE')",
        "ends": "import os\nos._exit(3)",
    }
    run = launch(modules, "nowhere")
    assert rankdeck("wait", run).returncode == 0
    assert [report[3:] for report in reports(rankdeck, run)] == [["shared"]] * 2
    assert sorted(left_out(rankdeck, run)) == [
        "ends is not preloaded: it ends the process that imports it",
        "nowhere is not preloaded: it can't be imported: No module named 'nowhere'",
        "reads is not preloaded: it reads WORLD_SIZE from the environment, and each rank has its own",
        "threads is not preloaded: it starts a thread",
    ]


USES = entries("e2e/preload", "uses")


@pytest.mark.usefixtures("executed")
def test_auto_preloads_what_the_script_used_in_its_last_run(rankdeck, write_script, write_profile, work):
    installed = work / "lib" / "site-packages"
    write_script("lib/site-packages/shared.py", f"{SHARED}\ndef deep(): pass\n")
    write_script("lib/site-packages/refused.py", "import os\nWHAT = os.environ.get('RANK')\ndef deep(): pass\n")
    write_script("lib/site-packages/unused.py", "class Unused: pass\n")
    write_script("beside.py", "from unused import Unused\nfrom refused import deep\n")
    sections: dict[str, Any] = {"launch": {"warm": True, "preload": "auto"}, "env": {"PYTHONPATH": str(installed)}}
    profile = write_profile(USES, ranks=2, **sections)
    runs = []
    for _ in range(3):
        run = rankdeck.launch(profile)
        assert rankdeck("wait", run).returncode == 0
        runs.append(run)
    modules = [
        [name for event in rankdeck.journal(run) if event["event"] == "ModulesImported" for name, _ in event["modules"]]
        for run in runs
    ]
    assert modules == [["torch"], ["torch", "shared", "unused"], ["torch", "shared", "unused"]]
    reason = "refused is not preloaded: it reads RANK from the environment, and each rank has its own"
    assert [left_out(rankdeck, run) for run in runs] == [[], [reason], []]
    (first, second), (third, fourth) = (reports(rankdeck, run) for run in runs[:2])
    assert first[1] != second[1]
    assert third[1] == fourth[1]
    assert "shared, unused" in rankdeck("plan", profile).stdout


def test_ranks_that_start_as_processes_of_their_own_have_nothing_preloaded(rankdeck, launch):
    run = launch({}, launch={"warm": False}, ranks=1)
    assert rankdeck("wait", run).returncode == 0
    pid = next(event["pid"] for event in rankdeck.journal(run) if event["event"] == "RankSpawned")
    assert reports(rankdeck, run, ranks=1) == [["0", str(pid), "yes"]]


@pytest.mark.usefixtures("executed")
def test_what_every_rank_imports_slowly_is_told_and_offered(rankdeck, write_script, write_profile, work):
    installed = work / "lib" / "site-packages"
    write_script("lib/site-packages/slow.py", "import time\ntime.sleep(0.6)\nimport inner\ndef deep(): pass\n")
    write_script("lib/site-packages/inner.py", "")
    text = (
        "import os, time, torch.distributed as dist\nfrom slow import deep\ndist.init_process_group('gloo')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\ndist.barrier()\ndist.destroy_process_group()\n"
    )
    profile = write_profile(text, ranks=2, env={"PYTHONPATH": str(installed)}, launch={"warm": True})
    assert "slow" not in rankdeck("plan", profile).stdout

    def told(run: str) -> list[dict[str, Any]]:
        return [event for event in rankdeck.journal(run) if event["event"] == "ScriptImported"]

    run = rankdeck.launch(profile)
    (first,) = wait_until(lambda: told(run), what="what was imported")
    rankdeck.ends(run, work / "go")
    run = rankdeck.launch(profile, "--set", 'launch.preload=["slow"]')
    assert rankdeck("wait", run).returncode == 0
    shared = told(run)
    ((name, seconds),) = first["modules"]
    assert (name, first["preload"], shared) == ("slow", ["slow"], [])
    assert seconds >= 0.6
    offer = 'launch.preload = ["slow"] imports it once'
    assert offer in rankdeck("plan", profile).stdout
    assert offer in rankdeck("check", "--quick", profile).stdout
    assert offer not in rankdeck("plan", profile, "--set", 'launch.preload=["slow"]').stdout


@pytest.mark.parametrize("folder", ["own", "lib/site-packages"])
def test_what_was_edited_or_installed_since_the_import_is_imported_again(
    rankdeck, write_script, write_profile, work, folder
):
    write_script(f"{folder}/shared.py", "WHAT = 'old'")
    env = {"PYTHONPATH": str(work / folder)}
    run = rankdeck.launch(
        write_profile(
            "import shared, time\nprint('up', shared.WHAT, flush=True)\nwhile True: time.sleep(0.1)",
            ranks=2,
            env=env,
            launch={"warm": True, "preload": ["shared"]},
        )
    )
    assert reports(rankdeck, run) == [["old"]] * 2
    template = parent_of(rankdeck.pids(run)[0])
    if folder == "own":
        write_script("own/shared.py", "WHAT = 'newer'")
    else:
        (work / folder / "another-1.0.dist-info").mkdir()
    rankdeck("restart", run)
    assert reports(rankdeck, run, attempt=1) == [["newer" if folder == "own" else "old"]] * 2
    assert parent_of(rankdeck.pids(run)[0]) != template
