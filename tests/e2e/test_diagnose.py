"""`rankdeck diagnose`: a run that holds, one that has ended, one that never began, and the log of a real torchrun."""

import json
import subprocess
import sys

from tests.support import PATIENCE, check_out, entries

TRAIN = entries("e2e/diagnose", "train")
FAILS = (
    "import os, sys, time\nif os.environ['RANK'] == '1': raise OSError(24, 'Too many open files')\n"
    "while True: time.sleep(0.1)"
)


WATCHDOG = entries("e2e/diagnose", "watchdog")


def test_a_run_that_holds_and_one_that_has_ended_are_told_alike(rankdeck, launch):
    run = launch(FAILS, ranks=2)
    rankdeck.wait_state(run, "holding")
    holding = rankdeck("diagnose", run)
    check_out(holding, 0, "rank 1 raised OSError  [P7]", 'launch.setup = "ulimit -n 65536"')
    rankdeck("stop", run, "--now")
    rankdeck.wait_state(run, "failed")
    assert rankdeck("diagnose", run).stdout == holding.stdout
    found = json.loads(rankdeck("diagnose", "-", "--json").stdout)
    assert (found["verdict"]["cause"], found["verdict"]["rank"], found["state"]) == ("P7", 1, "failed")


def test_ranks_that_lost_their_peer_are_folded_below_the_root_cause(rankdeck, launch):
    run = launch(TRAIN, ranks=3)
    rankdeck.wait_status(run, lambda status: [rank["state"] for rank in status["ranks"]] == ["failed"] * 3)
    said = rankdeck("diagnose", run).stdout
    assert said.startswith(f"{run}: rank 1 raised ValueError")
    assert "2 other ranks lost the connection to it: 0, 2" in said
    assert "ValueError: bad batch" in rankdeck("status", run).stdout


def test_an_earlier_attempt_is_told_of_while_the_newest_is_well(rankdeck, work, launch):
    run = launch("import os, time\nif not os.path.exists('well'): raise KeyError('x')\nwhile True: time.sleep(0.1)")
    rankdeck.wait_state(run, "holding")
    (work / "well").touch()
    rankdeck("restart", run)
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1 and status["state"] == "running")
    said = rankdeck("diagnose", run).stdout
    assert "rank 0 raised KeyError" in said
    assert "this is attempt 0; attempt 1 is newer" in said
    assert "no rank failed in attempt 1; the run is running" in rankdeck("diagnose", run, "--attempt", "1").stdout
    assert "the newest is 1" in rankdeck("diagnose", run, "--attempt", "2").stderr


def test_a_run_in_which_nothing_failed_is_said_to_be_well(rankdeck, write_profile):
    rankdeck("launch", write_profile("print('hello')"))
    check_out(rankdeck("diagnose", "-"), 0, "no rank failed in attempt 0; the run is succeeded")


def test_the_log_of_a_real_torchrun_names_the_rank(rankdeck, write_script, work):
    write_script("train.py", TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    (work / "job.log").write_bytes(done.stdout + done.stderr)
    found = rankdeck("diagnose", "--file", "job.log")
    check_out(found, 0, "job.log: rank 1 raised ValueError  [exception]", "ValueError: bad batch")
    # torchrun may have ended rank 0 before it found that its peer is gone; it says nothing then.
    _, other, rest = found.stdout.partition("1 other rank")
    assert not other or rest.split("\n")[0].endswith(": 0")


def test_a_log_that_says_nothing_known_ends_with_1_and_shows_its_last_lines(rankdeck, work):
    (work / "odd.log").write_bytes(b"\x1b]0;title\x07one\ntwo\n")
    done = rankdeck("diagnose", "--file", "odd.log")
    check_out(done, 1, "no known failure found")
    assert done.stdout.endswith("  | one\n  | two\n")
    assert "\x1b" not in done.stdout


def test_a_wrong_command_line_is_one_clear_error(rankdeck, work):
    for words in ((), ("-", "--file", "x"), ("--file", "no.log"), ("--file", "no.log", "--attempt", "1")):
        done = rankdeck("diagnose", *words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_what_torch_has_recorded_of_a_timeout_names_the_late_rank(rankdeck, launch):
    """Composed: gloo's records, which have the layout of nccl's, in files that are named as nccl's, and nccl's words."""
    run = launch(WATCHDOG, ranks=3)
    rankdeck.wait_status(
        run, lambda status: [one["state"] for one in status["ranks"]] == ["failed", "running", "failed"]
    )
    sentence = "rank 1 has not called all_reduce #2 of default_pg (7 x float32); ranks 0, 2 wait in it"
    rankdeck.wait_status(run, lambda status: status["failure"]["headline"] == sentence)
    said = rankdeck("diagnose", run).stdout
    assert said.startswith(f"{run}: {sentence}  [N12]")
    rankdeck("stop", run, "--now")
    rankdeck.wait_state(run, "failed")
    assert sentence in rankdeck("status", run).stdout
    (attempt,) = (rankdeck.home / "runs" / run).glob("attempt_0")
    (attempt / "nccl_trace_rank_1").write_bytes(b"torn")
    said = rankdeck("diagnose", run).stdout
    assert "rank 1 does not report its collectives" in said
    assert "nccl_trace_rank_1 can't be read" in said
