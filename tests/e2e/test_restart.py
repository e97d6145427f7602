"""What follows when a rank fails: hold, stop, restart; `restart`, `stop`, `kill` and `clean`. Ranks without torch."""

import ctypes
import fcntl
import json
import os
import select
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pexpect
import pytest

from engine.core.views.goodput import Part
from tests.support import (
    COMMAND,
    PATIENCE,
    Deck,
    check_err,
    check_out,
    entries,
    from_table,
    is_alive,
    kill_hard,
    wait_gone,
    wait_until,
)

FOR_EVER = "import signal; print('up', flush=True)\nwhile True: signal.pause()"
LADDER = [["SIGTERM", 5], ["SIGKILL", 5]]
IN_CLOSE_WRITE = 8  # of inotify: a file that was open for writing is closed

FAIL_ONCE = entries("e2e/restart", "fail_once")

STUBBORN_WITH_CHILDREN = entries("e2e/restart", "stubborn_with_children")


def events(rankdeck: Deck, run: str, name: str) -> list[dict[str, Any]]:
    """The events of one kind in a run's journal."""
    return [event for event in rankdeck.journal(run) if event["event"] == name]


# --- on_failure


def test_a_run_that_holds_for_too_long_ends(rankdeck, launch):
    run = launch(FAIL_ONCE, ranks=2, launch={"hold_for": 1})
    status = rankdeck.wait_state(run, "failed")
    assert [rank["state"] for rank in status["ranks"]] == ["stopped", "failed"]
    assert [event["seconds"] for event in events(rankdeck, run, "HoldOverdue")] == [1.0]
    assert "nobody restarted it within 1 s (launch.hold_for)" in rankdeck("status", run).stdout


def test_wait_returns_when_a_run_holds(rankdeck, launch):
    run = launch(FAIL_ONCE, ranks=2)
    done = rankdeck("wait", run, "--json")
    assert json.loads(done.stdout)["state"] == "holding"
    assert done.returncode == 5


def test_restart_starts_a_new_attempt_of_all_ranks(rankdeck, launch):
    run = launch(FAIL_ONCE, ranks=3, launch={"on_failure": "restart"})
    status = rankdeck.wait_state(run, "succeeded")
    assert [(rank["attempt"], rank["state"]) for rank in status["ranks"]] == [(1, "exited")] * 3
    for rank in range(3):
        assert rankdeck.log(run, rank, attempt=0) == b"attempt 0\n"
        assert rankdeck.log(run, rank, attempt=1) == b"attempt 1\n"
    assert rankdeck("logs", run, "--rank", "2", "--attempt", "0", "--split").stdout == "attempt 0\n"
    assert rankdeck("logs", run, "--rank", "2").stdout == "attempt 1\n"


def test_the_steps_that_a_restart_repeats_are_counted(rankdeck, write_profile):
    script = entries("e2e/restart", "steps_again")
    run = rankdeck.launch(write_profile(script, ranks=2, launch={"on_failure": "restart"}))
    used = rankdeck.wait_state(run, "succeeded")["goodput"]
    assert (used["repeated_steps"], used["doing"], used["starting"] > 0) == (3, None, True)
    launched, ended = (events(rankdeck, run, name)[-1]["at"] for name in ("RunLaunched", "NodeClosed"))
    assert sum(used[part] for part in get_args(Part)) == pytest.approx(ended - launched)
    assert "(3 steps)" in rankdeck("status", run).stdout
    assert "(3 steps)" in rankdeck("export", run, "--to", "html", "-o", "-").stdout


def test_automatic_restarts_end_at_max_restarts_and_every_attempt_is_printed(rankdeck, write_profile):
    """However short an attempt was: what it printed is what the user needs to see."""
    profile = write_profile(
        "import os, sys\nprint(os.environ['TORCHELASTIC_RESTART_COUNT'])\nsys.exit(4)",
        launch={"on_failure": "restart", "max_restarts": 4},
    )
    done = rankdeck("launch", profile)
    assert done.returncode == 4
    assert done.stdout.splitlines()[1:] == [f"[r0 localhost] {attempt}" for attempt in range(5)]


@from_table
def test_automatic_restarts_do_not_repeat_what_can_not_heal(
    last: str, attempts: int, why: str, rankdeck, write_profile
):
    run = rankdeck.launch(
        write_profile(
            f"import rankdeck\nfor step in range(1, 6): rankdeck.log(step=step)\n{last}",
            launch={"on_failure": "restart", "max_restarts": 5},
        )
    )
    status = rankdeck.wait_state(run, "failed")
    assert status["attempt"] + 1 == attempts
    assert why in status["failure"]["no_restart"]
    assert f"restart: no, because {status['failure']['no_restart']}" in status["doing"]


def test_a_profile_can_insist_on_restarts(rankdeck, write_profile):
    launch = {"on_failure": "restart", "max_restarts": 2, "restart_when": "always"}
    run = rankdeck.launch(write_profile("import no_such_package", launch=launch))
    assert rankdeck.wait_state(run, "failed")["attempt"] == 2


def test_automatic_restarts_go_on_while_there_is_progress(rankdeck, launch):
    script = (
        "import os, sys, rankdeck\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "for step in range(1, 3 + attempt): rankdeck.log(step=step)\n"
        "sys.exit(attempt < 4)"
    )
    run = launch(script, launch={"on_failure": "restart", "max_restarts": 10})
    status = rankdeck.wait_state(run, "succeeded")
    assert status["attempt"] == 4


# --- restart


def test_restart_says_what_it_does_and_does_it(rankdeck, launch):
    run = launch(FAIL_ONCE, ranks=2)
    old = rankdeck.wait_state(run, "holding")
    check_out(rankdeck("restart", run), 0, "attempt 1")
    status = rankdeck.wait_state(run, "succeeded")
    assert {rank["pid"] for rank in status["ranks"]}.isdisjoint(rank["pid"] for rank in old["ranks"])
    assert not any(is_alive(rank["pid"]) for rank in old["ranks"])


def test_a_restart_that_is_refused_is_an_error_with_the_reason(rankdeck, work, launch):
    """The ranks end when everybody has asked."""
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)"
    )
    run = launch(script, ranks=2, launch={"stop_ladder": [["SIGTERM", 600], ["SIGKILL", 5]]}, says=b"up")
    assert rankdeck("stop", run, "--no-wait").returncode == 0
    done = rankdeck("restart", run)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rankdeck: {run} can't be restarted: the run is ending; restart it once it has ended\n"
    (work / "go").touch()
    rankdeck.wait_state(run, "stopped")


def test_a_new_attempt_gets_a_new_store(rankdeck, launch):
    """torch 2.13's ranks read addresses of the last attempt when the store is the same (pytorch#135712)."""
    run = launch(FOR_EVER, says=b"up")
    rankdeck("restart", run)
    rankdeck.wait_log(run, 0, b"up", attempt=1)
    first, second = events(rankdeck, run, "StoreOpened")
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert (rankdeck.folder(run) / "attempt_0" / "store.log").exists()


@pytest.mark.parametrize("how", ["succeeded", "failed", "stopped"])
def test_a_run_that_has_ended_can_be_restarted(rankdeck, write_script, how, work, launch):
    script = write_script(
        "ends.py",
        "import os, signal, sys\n"
        "how = '' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else sys.argv[1]\n"
        "print('up', flush=True)\n"
        "if how == 'failed': sys.exit(3)\n"
        "if how == 'stopped': signal.pause()\n",
    )
    run = launch({"script": str(script), "args": [how]}, ranks=2, launch={"on_failure": "stop"})
    if how == "stopped":
        rankdeck.wait_log(run, 0, b"up")
        rankdeck("stop", run)
    rankdeck.wait_state(run, how)
    wait_until(lambda: rankdeck.processes() == [])
    before = [rankdeck.log(run, rank, attempt=0) for rank in range(2)]
    check_out(rankdeck("restart", run), 0, "attempt 1")
    assert rankdeck("wait", run).returncode == 0
    assert [(rank["attempt"], rank["exit"]) for rank in rankdeck.status(run)["ranks"]] == [(1, 0)] * 2
    assert [rankdeck.log(run, rank, attempt=0) for rank in range(2)] == before
    assert [rankdeck.log(run, rank, attempt=1) for rank in range(2)] == [b"up\n"] * 2


def test_a_restart_waits_for_the_supervisor_that_has_just_ended_the_run(rankdeck, launch):
    run = launch("print('up')")
    assert rankdeck("wait", run).returncode == 0
    wait_until(lambda: rankdeck.processes() == [])
    with (rankdeck.folder(run) / "supervisor.lock").open("rb+") as lock, ThreadPoolExecutor() as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kernel = ctypes.CDLL(None)
        closed = kernel.inotify_init1(os.O_CLOEXEC)
        kernel.inotify_add_watch(closed, os.fsencode(lock.name), IN_CLOSE_WRITE)
        asked = threads.submit(rankdeck, "restart", run)
        assert select.select([closed], [], [], PATIENCE)[0], "the command looks at the lock"
        os.close(closed)
        lock.close()
        done = asked.result(PATIENCE)
    assert done.returncode == 0, done.stderr
    assert rankdeck("wait", run).returncode == 0


def test_a_checkpoint_of_the_first_attempt_is_there_for_the_second(rankdeck, write_profile):
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "path = Path(os.environ['RANKDECK_CHECKPOINTS']) / 'step'\n"
        "path.parent.mkdir(parents=True, exist_ok=True)\n"
        "step = int(path.read_text()) if path.exists() else 0\n"
        "path.write_text(str(step + 10)); print('from', step)\n"
        "sys.exit(step < 10)"
    )
    check_out(rankdeck("launch", write_profile(script, launch={"on_failure": "restart"})), 0, "from 10")


# --- stop and kill


def test_stop_is_told_to_ranks_as_the_ladder_says(rankdeck, launch):
    script = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('up', flush=True)\nsignal.sigwait([signal.SIGUSR1])\nprint('saved')"
    )
    run = launch(script, ranks=2, launch={"stop_ladder": [["SIGUSR1", 600], ["SIGKILL", 5]]})
    rankdeck.wait_log(run, 0, b"up")
    rankdeck.wait_log(run, 1, b"up")
    rankdeck.wait_state(run, "running")  # a rank may print before the supervisor knows of it
    assert rankdeck("stop", run).returncode == 0
    status = rankdeck.wait_state(run, "stopped")
    assert [(rank["state"], rank["exit"]) for rank in status["ranks"]] == [("stopped", 0)] * 2
    assert rankdeck.log(run, 1).endswith(b"saved\n")


@pytest.mark.parametrize("words", [(), ("--now",)], ids=["ladder", "now"])
def test_after_stop_no_process_of_the_run_exists(rankdeck, work, words, launch):
    """Ranks that ignore every polite signal, and children in their group, in sessions of their own, and orphans."""
    run = launch(
        STUBBORN_WITH_CHILDREN,
        ranks=2,
        launch={"stop_ladder": [["SIGINT", 0.3], ["SIGTERM", 0.3], ["SIGKILL", 5]]},
    )
    pids = wait_until(
        lambda: [int(path.read_text()) for path in work.glob("*.pid")] if len(list(work.glob("*.pid"))) == 6 else []
    )
    pids += [rank["pid"] for rank in rankdeck.wait_state(run, "running")["ranks"]]
    assert all(is_alive(pid) for pid in pids)
    rankdeck("stop", run, *words)
    rankdeck.wait_state(run, "stopped")
    assert [pid for pid in pids if is_alive(pid)] == []
    wait_until(lambda: rankdeck.processes() == [])


def test_after_the_end_no_child_of_a_rank_exists(rankdeck, work, launch):
    run = launch(STUBBORN_WITH_CHILDREN.replace('print("up", flush=True)\nwhile True: signal.pause()', ""))
    assert rankdeck("wait", run).returncode == 0
    assert not any(is_alive(int(path.read_text())) for path in work.glob("*.pid"))
    wait_until(lambda: rankdeck.processes() == [])


def test_a_stop_during_the_start_ends_the_run(rankdeck, launch):
    run = launch(FOR_EVER, ranks=4)
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: rankdeck.processes() == [])


def test_kill_sends_a_signal_to_one_rank_and_harms_nobody_where_rank_or_signal_do_not_exist(rankdeck, launch):
    run = launch(FOR_EVER, ranks=5, says=b"up")
    for words in (["9"], ["-1"], ["0", "--signal", "NOPE"], ["0", "--signal", "0"], ["0", "--signal", "99"]):
        done = rankdeck("kill", run, "--rank", *words)
        assert "Traceback" not in done.stderr
        assert done.returncode == 2 or (done.returncode == 1 and "no rank 9" in done.stderr)
    rankdeck.wait_state(run, "running")
    for rank, name in enumerate(("KILL", "SIGTERM", "6", "usr1"), 1):
        assert rankdeck("kill", run, "--rank", str(rank), "--signal", name).returncode == 0
    ends = [None, -9, -15, -6, -10]
    rankdeck.wait_status(run, lambda status: [rank["exit"] for rank in status["ranks"]] == ends)
    check_err(rankdeck("kill", run, "--rank", "1"), 1, "rank 1 has ended already")
    rankdeck("stop", run, "--now")


def test_a_run_that_has_ended_has_no_rank_to_kill_and_no_stacks(rankdeck, launch):
    run = launch("print('said')")
    rankdeck("wait", run)
    for done in (rankdeck("kill", run, "--rank", "0"), rankdeck("stacks", run)):
        check_err(done, 1, f"{run} has ended")


def test_kill_waits_for_a_rank_that_is_about_to_start(rankdeck, work, launch):
    run = launch(FOR_EVER, launch={"setup": f"sleep 2; : {work}"})
    assert rankdeck("kill", run, "--rank", "0").returncode == 0
    assert rankdeck.wait_state(run, "holding")["ranks"][0]["exit"] == -9


# --- clean


def test_clean_removes_what_has_ended_and_nothing_else(rankdeck, launch):
    ended = launch("print('hello')", name="ended")
    rankdeck("wait", ended)
    running = launch(FOR_EVER, name="running", says=b"up")
    done = rankdeck("clean", "--yes", "--json")
    assert json.loads(done.stdout) == [ended]
    assert not rankdeck.folder(ended).exists()
    rankdeck.wait_state(running, "running")
    check_err(rankdeck("clean", running, "--yes"), 2, f"rankdeck stop {running}")
    assert json.loads(rankdeck("clean", "--yes", "--json").stdout) == []


def test_clean_leaves_a_run_whose_supervisor_was_killed(rankdeck, launch):
    """Its processes live, and its folder is all that leads to them."""
    run = launch(FOR_EVER, says=b"up")
    pid = rankdeck.supervisor(run)
    kill_hard(pid)
    wait_gone(pid)
    assert json.loads(rankdeck("clean", "--yes", "--json").stdout) == []
    rankdeck.wait_state(run, "running")


def test_clean_without_a_terminal_removes_nothing_unless_yes_is_given(rankdeck, launch):
    run = launch("print('hello')")
    rankdeck("wait", run)
    for words in ([], [run]):
        check_err(rankdeck("clean", *words), 2, "not removed: there is no terminal to confirm it", "--yes")
    assert rankdeck.status(run)["state"] == "succeeded"
    assert rankdeck("clean", run, "--yes").stdout == "removed 1 run\n"
    assert rankdeck("clean").returncode == 0  # nothing to remove, nothing to ask


def test_clean_leaves_the_newest_and_the_youngest_runs(rankdeck, write_profile):
    profile = write_profile("print('done')")
    oldest, *young = [rankdeck("launch", profile).stdout.split()[0] for _ in range(3)]
    summary = rankdeck.folder(oldest) / "summary.json"
    wait_until(lambda: not rankdeck.processes(), what="nobody writes it any more")
    told = json.loads(summary.read_text())
    summary.write_text(json.dumps(told | {"ended_at": told["ended_at"] - 3 * 86400}))
    assert rankdeck("clean", "--older", "4d").stdout == "there is no run to remove\n"
    assert rankdeck("clean", "--keep", "3", "--yes").stdout == "there is no run to remove\n"
    assert rankdeck("clean", "--keep", "1", "--older", "2d", "--yes", "--json").stdout == f'["{oldest}"]\n'
    assert rankdeck("clean", "--keep", "1", "--yes", "--json").stdout == f'["{young[0]}"]\n'
    assert rankdeck("status", young[1]).returncode == 0


@pytest.mark.parametrize("words", [["--older", "3"], ["--older", "1y"], ["--keep", "-1"], ["job", "--keep", "1"]])
def test_a_wrong_choice_of_runs_to_remove_removes_nothing(rankdeck, words):
    refused = rankdeck("clean", *words, "--yes")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_clean_leaves_a_run_that_was_restarted_while_it_asked(rankdeck, launch):
    run = launch(
        FAIL_ONCE.replace("sys.exit(5)", "os._exit(5)") + "while True: signal.pause()\n",
        ranks=2,
        launch={"on_failure": "stop", "stop_ladder": LADDER},
    )
    rankdeck("wait", run)
    rankdeck.wait_state(run, "failed")
    asking = pexpect.spawn(COMMAND[0], [*COMMAND[1:], "clean"], encoding="utf-8", timeout=PATIENCE, env=os.environ)
    asking.expect("Remove 1 run")
    assert rankdeck("restart", run, "--all").returncode == 0
    rankdeck.wait_log(run, 0, b"attempt 1", attempt=1)
    asking.sendline("y")
    asking.expect("active again")
    asking.expect(pexpect.EOF)
    asking.wait()
    asking.close()
    rankdeck.wait_state(run, "running")


def test_a_run_whose_supervisor_can_t_start_is_stopped_and_removed(rankdeck, launch):
    run = launch(FOR_EVER, ranks=2, says=b"up")
    ranks = rankdeck.pids(run)
    wait_until((rankdeck.folder(run) / "summary.json").exists)
    supervisor = rankdeck.supervisor(run)
    with (rankdeck.folder(run) / "journal.jsonl").open("rb+") as journal:
        journal.write(b"damaged")
    kill_hard(supervisor)
    check_err(rankdeck("stop", run), 1, f"rankdeck stop --now {run}")
    assert rankdeck("clean", run, "--yes").returncode == 2
    assert all(map(is_alive, ranks))
    assert rankdeck("stop", run, "--now").returncode == 0
    wait_gone(*ranks)
    wait_until(lambda: not rankdeck.processes(), what="no guard is left")
    assert rankdeck("clean", run, "--yes").returncode == 0
    assert not rankdeck.folder(run).exists()
