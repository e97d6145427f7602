"""`rankdeck status` and `rankdeck ps`, runs by name, and the numbers that they show."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import check_err, check_out, kill_hard, wait_gone, wait_until

FOR_EVER = "import signal; print('up', flush=True)\nwhile True: signal.pause()"
RANK_KEYS = "rank node local_rank pid state exit attempt generation step loss throughput".split()


def gate(before: str = "", after: str = "") -> str:
    """A rank that waits between the two until the test makes the file `go`."""
    return (
        f"import os, sys, time\nrank = int(os.environ['RANK'])\n{before}\nprint('up', flush=True)\n"
        f"while not os.path.exists('go'): time.sleep(0.01)\n{after}\n"
    )


# --- status


def test_status_json_has_what_scripts_may_rely_on(rankdeck, work, launch):
    run = launch(gate("import rankdeck\nrankdeck.log(step=7, loss=0.5)", "sys.exit(0)"), ranks=2, name="shape")
    status = rankdeck.wait_status(run, lambda status: [rank["step"] for rank in status["ranks"]] == [7, 7])
    assert {"run", "name", "state", "ranks"} <= set(status)
    assert (status["run"], status["name"], status["state"]) == (run, "shape", "running")
    assert (status["backend"], status["world_size"]) == ("gloo", 2)
    for number, rank in enumerate(status["ranks"]):
        assert [key for key in rank if key in RANK_KEYS] == RANK_KEYS
        pid = rank.pop("pid")
        assert f"RANK={number}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {key: rank[key] for key in RANK_KEYS if key != "pid"} == {
            "rank": number,
            "node": "localhost",
            "local_rank": number,
            "state": "running",
            "exit": None,
            "attempt": 0,
            "generation": 0,
            "step": 7,
            "loss": 0.5,
            "throughput": None,
        }
    (work / "go").touch()
    status = rankdeck.wait_state(run, "succeeded")
    assert [(rank["state"], rank["exit"]) for rank in status["ranks"]] == [("exited", 0)] * 2


def test_status_tells_how_ranks_ended(rankdeck, launch):
    script = (
        "import os, signal, sys\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0: sys.exit(0)\n"
        "if rank == 1: sys.exit(3)\n"
        "if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "while True: signal.pause()"
    )
    run = launch(script, ranks=4)
    status = rankdeck.wait_status(run, lambda status: sum(r["exit"] is not None for r in status["ranks"]) == 3)
    assert status["state"] == "holding"
    assert [(rank["state"], rank["exit"]) for rank in status["ranks"]] == [
        ("exited", 0),
        ("failed", 3),
        ("failed", -9),
        ("running", None),
    ]
    assert "failed" in rankdeck("stop", run).stdout
    status = rankdeck.wait_state(run, "failed")
    assert status["ranks"][3]["state"] == "stopped"


def test_what_a_rank_says_of_its_backend_moves_no_terminal_and_names_no_rank_that_is_not_there(rankdeck, write_profile):
    """The rank fails while it sets its process group up, with words that are made to do harm, on both backends in turn."""
    text = """
import rankdeck, sys
rankdeck.log(joining=True)
sys.stderr.write("Ranks 77 failed to pass monitoredBarrier in 5 ms\\n")
raise RuntimeError("\\x1b]0;pwned\\x07 Ranks 77 failed to pass monitoredBarrier in 5 ms")
"""
    backend = {"name": "gloo", "fallback": ["cpu:gloo"]}
    profile = write_profile(text, ranks=2, backend=backend, launch={"on_failure": "stop"})
    done = rankdeck("launch", profile)
    check_err(done, 1, "running on cpu:gloo")
    run = done.stdout.split("\n")[0]
    said = [rankdeck("status", run), rankdeck("wait", run), rankdeck("diagnose", run), rankdeck("ps", "--all")]
    assert [one.returncode for one in said] == [0, 1, 0, 0]
    own = "".join(one for one in done.stderr.splitlines(keepends=True) if not one.startswith("[r"))  # else as written
    for text in (own, *(one.stdout + one.stderr for one in said)):
        assert not {"\x1b", "\x07"} & set(text)
        assert "IndexError" not in text


def test_seven_processes_of_ours_run_beside_the_ranks_and_each_says_what_it_is(rankdeck, launch):
    run = launch(FOR_EVER, ranks=2, launch={"warm": True})
    rankdeck.wait_state(run, "running")
    ranks = rankdeck.pids(run)
    titles = {f"rankdeck: {role} {run}" for role in ("supervisor", "guard")}
    titles |= {f"rankdeck: {role} {run} localhost" for role in ("bridge", "warden", "agent", "template", "store")}
    wait_until(
        lambda: sorted(one.command.strip() for one in rankdeck.processes() if one.pid not in ranks) == sorted(titles)
    )
    assert all("job.py" in one.command for one in rankdeck.processes() if one.pid in ranks)


def test_the_status_of_a_run_that_has_ended_needs_no_process(rankdeck, write_profile):
    rankdeck("launch", write_profile("print('hello')"))
    before = rankdeck.status()
    assert before["state"] == "succeeded"
    assert rankdeck.processes() == []
    assert rankdeck.sockets() == []
    assert rankdeck.status() == before


# --- numbers


def test_metrics_are_read_by_patterns_of_the_profile(rankdeck, launch):
    patterns = [r"schritt (?P<step>\d+)", r"-> (?P<loss>\S+)", r"@@ (?P<throughput>\d+)"]
    run = launch(gate("print('schritt 12: verlust 0,5 -> 0.25 @@ 9')"), metrics={"patterns": patterns})
    status = rankdeck.wait_status(run, lambda status: status["ranks"][0]["step"] == 12)
    assert status["ranks"][0]["loss"] == 0.25
    assert status["ranks"][0]["throughput"] == 9


def test_metrics_are_read_from_rankdeck_log_and_throughput_is_computed(rankdeck, launch):
    script = (
        "import os, time, rankdeck\n"
        "step = 0\n"
        "while not os.path.exists('go'):\n"
        "    step += 1\n"
        "    rankdeck.log(step=step, steps=9999, loss=1 / step, samples=10)\n"
        "    time.sleep(0.02)\n"
    )
    run = launch(script, ranks=2)
    status = rankdeck.wait_status(run, lambda status: status["ranks"][0]["throughput"] and status["throughput"])
    rate = status["ranks"][0]["throughput"]
    assert 0 < rate < 520, "10 samples every 20 ms or more"
    assert status["throughput"] == pytest.approx(sum(rank["throughput"] or 0 for rank in status["ranks"]))
    assert status["unit"] == "samples"
    assert status["steps"] == 9999
    assert 0 < status["loss"] <= 1


def test_a_loss_that_is_no_number_keeps_status_json_valid(rankdeck, launch):
    run = launch(gate("import rankdeck\nrankdeck.log(step=1, loss=float('nan'))\nprint('loss=inf')"))
    status = rankdeck.wait_status(run, lambda status: status["ranks"][0]["step"] == 1)
    assert status["ranks"][0]["loss"] == "nan"
    assert status["ranks"][0]["note"] == "the loss is nan"
    assert "NaN" not in rankdeck("status", run, "--json").stdout


# --- names


def test_a_run_goes_by_its_id_by_any_unique_beginning_and_by_a_dash(rankdeck, write_script, launch):
    script, runs = write_script("hello.py", "print('hello')"), []
    for name in ("alpha", "beta", "beta"):
        runs.append(launch(script, name=name))
        rankdeck("wait", runs[-1])
    longer = launch(script, name=runs[0])
    rankdeck("wait", longer)
    assert [rankdeck.status(word)["run"] for word in (*runs, "-")] == [*runs, longer]
    assert rankdeck.status(longer[:-1])["run"] == longer
    done = rankdeck("status", "b")
    assert done.returncode == 2
    assert all(run in done.stderr for run in runs[1:])


@pytest.mark.parametrize("word", ["", "nobody", "-", "../../etc", "a/b", "%s", "é"])
def test_a_run_that_does_not_exist_is_a_usage_error(rankdeck, word):
    done = rankdeck("status", "--", word)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- ps


def test_ps_lists_what_runs_and_all_lists_what_has_ended(rankdeck, launch):
    ended = launch("print('hello')", name="ended")
    rankdeck("wait", ended)
    running = launch(FOR_EVER, name="running", ranks=3)
    rankdeck.wait_state(running, "running")
    assert [run["run"] for run in json.loads(rankdeck("ps", "--json").stdout)] == [running]

    def listed() -> list[tuple[str, str]]:
        return [(run["run"], run["state"]) for run in json.loads(rankdeck("ps", "--all", "--json").stdout)]

    wait_until(lambda: listed() == [(running, "running"), (ended, "succeeded")], what="ps --all has both, newest first")
    table = rankdeck("ps", "--all").stdout
    assert all(word in table for word in (running, ended, "running", "succeeded"))
    assert ended not in rankdeck("ps").stdout


def test_ps_and_status_name_a_run_that_holds_with_the_reason(rankdeck, launch):
    script = "import os, time\nif os.environ['RANK'] == '1': raise RuntimeError('no such luck')\ntime.sleep(600)"
    run = launch(script, ranks=2)
    rankdeck.wait_state(run, "holding")
    said = rankdeck("status", run).stdout
    assert [
        text for text in ("holding", "RuntimeError: no such luck", f"rankdeck restart {run}") if text not in said
    ] == []

    def listed() -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(rankdeck("ps", "--json").stdout)
        return found[0]

    wait_until(lambda: listed()["state"] == "holding", what="ps says that it holds")
    assert (listed()["run"], listed()["ended_at"]) == (run, None)
    assert "rank 1" in listed()["reason"]
    (line,) = [line for line in rankdeck("ps").stdout.splitlines() if line.startswith(run)]
    assert "holding" in line
    assert "rank 1" in line


def test_ps_of_an_empty_home_says_how_to_start(rankdeck):
    check_out(rankdeck("ps"), 0, "rankdeck launch")
    assert json.loads(rankdeck("ps", "--all", "--json").stdout) == []


def test_ps_says_when_a_supervisor_is_gone(rankdeck, launch):
    run = launch(FOR_EVER)
    rankdeck.wait_state(run, "running")
    supervisor = rankdeck.supervisor(run)

    def guards() -> list[int]:
        found: list[int] = rankdeck.of_role("guard")
        return found

    wait_until(guards, what="who starts the next supervisor")
    for guard in guards():
        os.kill(guard, signal.SIGSTOP)
    kill_hard(supervisor)
    wait_gone(supervisor)
    (shown,) = json.loads(rankdeck("ps", "--json").stdout)
    for guard in guards():
        os.kill(guard, signal.SIGCONT)
    assert shown["run"] == run
    assert shown["reachable"] is False
    assert "attach" in shown["reason"]


def test_a_run_without_a_plan_is_named_by_ps_and_removed_by_clean(rankdeck):
    runs = rankdeck.home / "runs"
    for name in ("lost-abcd", "gone-abcd", "empty-abcd", "young-abcd", "notes-data"):
        (runs / name).mkdir(parents=True)
    (runs / "lost-abcd" / "profile.toml").touch()
    (runs / "gone-abcd" / "plan.json.partial").touch()
    (runs / "notes-data" / "of the user").touch()
    (runs / "a-link").symlink_to(runs / "nowhere")
    (runs / "a-file").write_text("x")
    for folder in runs.iterdir():
        if folder.is_dir() and folder.name != "young-abcd":  # its launch may have only just begun
            os.utime(folder, (0, 0))
    rows = {row["run"]: row for row in json.loads(rankdeck("ps", "--json").stdout)}
    assert sorted(rows) == ["empty-abcd", "gone-abcd", "lost-abcd"]
    assert {row["state"] for row in rows.values()} == {"unreadable"}
    assert rows["lost-abcd"]["reason"].endswith(
        "plan.json can't be read: No such file or directory; rankdeck clean lost-abcd removes it"
    )
    check_err(rankdeck("clean", "lost-abcd"), 2, "--yes")
    assert rankdeck("clean", "young-abcd", "--yes").returncode == 2
    assert json.loads(rankdeck("clean", "lost-abcd", "--yes", "--json").stdout) == ["lost-abcd"]
    assert json.loads(rankdeck("clean", "--keep", "1", "--yes", "--json").stdout) != []
    rankdeck("clean", "--yes")
    assert sorted(folder.name for folder in runs.iterdir()) == ["a-file", "a-link", "notes-data", "young-abcd"]


def test_an_active_run_whose_plan_is_removed_stays(rankdeck, launch):
    run = launch("import time; time.sleep(10_000)")
    rankdeck.wait_state(run, "running")
    plan = rankdeck.folder(run) / "plan.json"

    def without_plan(*words: str) -> subprocess.CompletedProcess[str]:
        """What a command says that has seen no plan: the supervisor puts it back every second."""

        done: list[subprocess.CompletedProcess[str]] = []

        def has_seen_none() -> bool:
            plan.unlink(missing_ok=True)
            done.append(rankdeck(*words))
            return not plan.exists()

        wait_until(has_seen_none, what=f"{words} without a plan")
        return done[-1]

    listed = without_plan("ps").stdout
    assert run in listed
    assert "unreadable" not in listed
    assert json.loads(without_plan("clean", "--yes", "--json").stdout) == []
    plan.unlink(missing_ok=True)
    check_err(rankdeck("clean", run, "--yes"), 2, f"rankdeck stop {run} ends it")
    wait_until(plan.exists, what="the plan comes back")
    assert rankdeck.status(run)["state"] == "running"


def test_two_homes_do_not_see_each_others_runs(rankdeck, write_profile, tmp_path):
    rankdeck("launch", write_profile("print('hello')"))
    other = {"RANKDECK_HOME": str(tmp_path / "other")}
    assert json.loads(rankdeck("ps", "--all", "--json", env=other).stdout) == []
    assert rankdeck("status", "-", env=other).returncode == 2


def test_a_home_that_is_relative_or_has_a_tilde_is_understood(rankdeck, write_profile, work):
    profile = write_profile("print('hello')")
    for home, found in (("kept/here", work / "kept/here"), ("~/kept", work / "kept")):
        done = rankdeck("launch", profile, env={"RANKDECK_HOME": home, "HOME": str(work)})
        assert done.returncode == 0, done.stderr
        assert os.listdir(found / "runs")
