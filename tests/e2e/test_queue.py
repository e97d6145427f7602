"""The queue: runs that wait for others, and what starts them when processes are killed."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from engine.core.sweeps.queue import ALL, MOST_TRIES, Needs, Queue
from engine.runs.paths import runs_folder
from engine.runs.queue.file import change_queue, queue_file, read_queue
from tests.fake_nvml import gpu
from tests.support import Deck, check_err, entries, kill_hard, processes_with, wait_gone, wait_until

NOTE = entries("e2e/queue", "note")
BROKEN = "import os, sys\nif 'start-queued' in sys.orig_argv and sys.orig_argv[-1].isdecimal():\n    os._exit(3)\n"
WAIT = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"


def starts(work: Path) -> Counter[str]:
    return Counter((work / "starts").read_text().split()) if (work / "starts").exists() else Counter()


def all_have_ended(rankdeck: Deck, runs: int) -> bool:
    listed = json.loads(rankdeck("runs", "--json").stdout)
    return len(listed) == runs and all(run["state"] == "succeeded" for run in listed)


def test_a_run_starts_once_another_has_ended_without_a_command(rankdeck, write_script, work, monkeypatch):
    write_script("wait.py", WAIT)
    write_script("note.py", NOTE)
    first = rankdeck("run", "-n", "1", "--detach", "wait.py").stdout.strip()
    monkeypatch.setenv("COLOUR", "light")
    queued = rankdeck("run", "-n", "1", "--json", "--after", first, "note.py", "a")
    assert json.loads(queued.stdout) == {"entry": 1}
    for word in ("b", "c"):
        assert rankdeck("run", "-n", "1", "--after", first, "note.py", word).returncode == 0
    assert rankdeck("queue", "hold", "2").returncode == 0
    assert rankdeck("queue", "move", "3", "1").returncode == 0
    listed = json.loads(rankdeck("queue", "--json").stdout)
    assert [(one["number"], one["state"], one["reason"]) for one in listed] == [
        (3, "queued", f"{first} has not ended"),
        (1, "queued", f"{first} has not ended"),
        (2, "held", ""),
    ]
    assert not starts(work)
    (work / "go").touch()
    wait_until(lambda: starts(work) == Counter(["0c", "0a"]))
    check_err(rankdeck("queue", "cancel", "2"), 2, "add --yes")
    check_err(rankdeck("queue", "hold", "7"), 2, "entry '7' is not in the queue")
    assert rankdeck("queue", "release", "2").returncode == 0
    wait_until(lambda: starts(work)["0b"])
    wait_until(lambda: not queue_file().exists())
    wait_until(lambda: all_have_ended(rankdeck, 4))


def test_an_entry_that_can_not_start_says_why_and_the_next_one_starts(rankdeck, write_script, work, monkeypatch):
    script = write_script("gone.py", NOTE)
    write_script("note.py", NOTE)
    held = rankdeck("run", "-n", "1", "--detach", write_script("wait.py", WAIT)).stdout.strip()
    for name in ("gone.py", "note.py", "note.py"):
        assert rankdeck("run", "-n", "1", "--after", held, name, "x").returncode == 0
    assert rankdeck("queue", "cancel", "3", "--yes").returncode == 0
    write_script("broken/sitecustomize.py", BROKEN)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(work / "broken"))
        assert rankdeck("run", "-n", "1", "--after", held, "note.py", "y").returncode == 0
    folder = Path(os.fsdecode(os.fsencode(work) + b"/bytes\xff"))
    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.chdir(folder)
        assert rankdeck("run", "-n", "1", "--after", held, "../note.py", "z").returncode == 0
    folder.rmdir()
    script.unlink()
    (work / "go").touch()
    wait_until(lambda: starts(work) == Counter(["0x"]))
    wait_until(lambda: [one.state for one in read_queue().entries] == ["failed"] * 3)
    shown = rankdeck("queue").stdout
    assert "failed" in shown
    assert "gone.py does not exist" in shown
    assert "its start ended with 3" in shown
    assert "No such file or directory" in shown
    assert rankdeck("queue", "cancel", "1", "4", "5", "--yes").returncode == 0
    wait_until(lambda: all_have_ended(rankdeck, 2))


def starters(rankdeck: Deck) -> list[int]:
    return [one.pid for one in processes_with("RANKDECK_HOME", str(rankdeck.home)) if "start-queued" in one.command]


def test_a_start_that_was_cut_off_is_finished_and_none_happens_twice(rankdeck, write_script, work):
    write_script("note.py", NOTE)
    done = rankdeck("run", "-n", "1", "--detach", "note.py", "planned").stdout.strip()
    rankdeck.wait_state(done, "succeeded")
    (work / "starts").unlink()
    blocker = rankdeck("run", "-n", "1", "--detach", write_script("wait.py", WAIT)).stdout.strip()
    for word in ("begun", "none", "empty", "planned", "killed"):
        assert rankdeck("run", "-n", "1", "--after", blocker, "note.py", word).returncode == 0
    wait_until(lambda: not starters(rankdeck))
    names = (done, "note-aaaa", "note-bbbb", "note-cccc", "note-dddd")
    (runs_folder() / "note-bbbb").mkdir()
    (runs_folder() / "note-cccc").mkdir()
    for name in ("plan.json", "profile.toml"):
        shutil.copy(runs_folder() / done / name, runs_folder() / "note-cccc")

    def claim(queue: Queue) -> Queue:
        claimed = [replace(one, state="starting", run=run) for one, run in zip(queue.entries, names, strict=True)]
        return replace(queue, entries=(*claimed[:-1], replace(claimed[-1], tries=MOST_TRIES)))

    change_queue(claim)
    check_err(rankdeck("queue", "cancel", "2", "--yes"), 2, "entry '2' starts now", "rankdeck stop note-aaaa")
    assert rankdeck("queue").returncode == 0
    wait_until(lambda: [one.reason for one in read_queue().entries] == [f"its start was killed {MOST_TRIES} times"])
    assert rankdeck("queue", "cancel", "5", "--yes").returncode == 0
    assert not queue_file().exists()
    (work / "go").touch()
    wait_until(lambda: all_have_ended(rankdeck, 5))
    assert starts(work) == Counter(["0none", "0empty", "0planned"])


def test_twenty_runs_all_start_once_whenever_starters_are_killed(rankdeck, write_profile, work):
    profile = write_profile(NOTE)
    values = [str(number) for number in range(20)]
    done = rankdeck("sweep", profile, "--arg", f"x={','.join(values)}", "--parallel", "2", "--detach")
    assert done.returncode == 0, done.stderr
    chance = random.Random(1)
    killed = 0

    def is_over() -> bool:
        nonlocal killed
        time.sleep(chance.uniform(0, 0.5))
        is_spent = any(one.tries >= MOST_TRIES - 1 for one in read_queue().entries)  # else an entry may fail
        for pid in starters(rankdeck)[: 0 if is_spent else chance.randrange(3)]:
            kill_hard(pid)
            killed += 1
        if not rankdeck.processes():  # nothing is left that would start the next one
            assert rankdeck("queue").returncode == 0
        return not queue_file().exists()

    wait_until(is_over, 120)
    wait_until(lambda: all_have_ended(rankdeck, 20))
    assert starts(work) == Counter(f"0{value}" for value in values)
    assert killed


def test_a_run_gets_a_gpu_once_another_process_has_left_it(rankdeck, write_script, work, nvml, monkeypatch):
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    nvml.show(gpu(0), gpu(1, used=0, processes=1))
    write_script("note.py", "import os\nopen('got', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    first = rankdeck("run", "-n", "1", "--detach", write_script("wait.py", WAIT)).stdout.strip()
    assert rankdeck("run", "-n", "1", "--after", first, "note.py").returncode == 0
    needs = Needs(ranks=1, gpus=(ALL,))  # as those of a run on GPUs, of which this machine has none
    change_queue(lambda queue: replace(queue, entries=(replace(queue.entries[0], needs=needs),)))
    (work / "go").touch()
    rankdeck.wait_state(first, "succeeded")
    wait_until(lambda: "0 of 1 GPU free" in rankdeck("queue").stdout)
    wait_until(lambda: len(starters(rankdeck)) == 1)
    nvml.show(gpu(0), gpu(1, used=0))
    wait_until(lambda: (work / "got").exists() and (work / "got").read_text() == "1")
    wait_until(lambda: not queue_file().exists() and not starters(rankdeck))
    wait_until(lambda: all_have_ended(rankdeck, 2))


def test_a_run_whose_supervisor_and_guard_were_killed_does_not_stop_the_queue(rankdeck, write_script, work):
    write_script("note.py", NOTE)
    first = rankdeck("run", "-n", "1", "--detach", write_script("wait.py", WAIT)).stdout.strip()
    rankdeck.pids(first)
    assert rankdeck("run", "-n", "1", "--after", first, "note.py", "x").returncode == 0
    wait_until(lambda: not starters(rankdeck))
    watchers = rankdeck.of_role("guard", "supervisor")
    for pid in watchers:
        os.kill(pid, signal.SIGSTOP)  # else one of them would replace the other
    for pid in watchers:
        kill_hard(pid)
    wait_gone(*watchers)
    (work / "go").touch()
    assert rankdeck("queue").returncode == 0
    wait_until(lambda: starts(work) == Counter(["0x"]))
    wait_until(lambda: all_have_ended(rankdeck, 2))
