"""`rankdeck sweep`: a profile with other values, run after run."""

import json

from tests.support import check_err, entries

TRAIN = entries("e2e/sweep", "train")


def test_a_sweep_shows_what_would_run_and_starts_nothing(rankdeck, write_profile):
    profile = write_profile(TRAIN)
    words = ("sweep", profile, "--arg", "lr=1,2", "--over", "layout.ranks_per_node=[1, 2]")
    shown = rankdeck(*words, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [
        [str(number), ranks, lr, ranks, "gloo", "--lr", lr]
        for number, (ranks, lr) in enumerate([("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")], 1)
    ]
    drawn = [rankdeck(*words, "--random", "2", "--seed", "5", "--plan", "--json") for _ in range(2)]
    assert len(json.loads(drawn[0].stdout)) == 2
    assert drawn[0].stdout == drawn[1].stdout
    assert not list((rankdeck.home / "runs").glob("*"))


def test_a_sweep_with_a_point_that_can_not_run_starts_none(rankdeck, write_profile, work):
    profile = write_profile(TRAIN)
    check_err(rankdeck("sweep", profile, "--over", "launch.workdir=['.', 'nowhere']"), 3, "nowhere does not exist")
    check_err(rankdeck("sweep", profile, "--over", "layout.ranks_per_node=[1, 'x']"), 2, "--over layout.ranks_per_node")
    check_err(rankdeck("sweep", profile, "--arg", "lr=1,fast"), 2, "--arg lr=1,fast: lr: 'fast' is not a number")
    check_err(rankdeck("sweep", profile, "--arg", "lrs=1"), 2, "did you mean lr?")
    check_err(rankdeck("sweep", profile, "--arg", "lr=1", "--name", "2", "--plan"), 2, "not a number alone")
    check_err(rankdeck("sweep", "ddp-mlp", "--arg", "lr=1"), 2, "is a recipe, not a profile", "rankdeck new ddp-mlp")
    stranger = work / ".rankdeck" / "theirs.toml"
    stranger.parent.mkdir()
    stranger.write_text(profile.read_text().replace('"job"', '"theirs"'))
    check_err(rankdeck("sweep", "theirs", "--arg", "lr=1"), 3, "is not trusted")
    assert not list((rankdeck.home / "runs").glob("*"))


def test_runs_of_a_sweep_are_ordinary_runs_that_know_their_values(rankdeck, write_profile):
    profile = write_profile(TRAIN)
    done = rankdeck("sweep", profile, "--arg", "lr=1,7,2", "--name", "mine", "--parallel", "2")
    check_err(done, 1, "mine: 3 runs", " failed")
    listed = json.loads(rankdeck("runs", "--json").stdout)
    assert sorted((run["swept"]["values"]["lr"], run["swept"]["number"], run["state"]) for run in listed) == [
        ("1", 1, "succeeded"),
        ("2", 3, "succeeded"),
        ("7", 2, "failed"),
    ]
    assert {(run["swept"]["sweep"], run["swept"]["runs"]) for run in listed} == {("mine", 3)}
    first = next(run["run"] for run in listed if run["swept"]["number"] == 1)
    assert "mine, run 1 of 3: lr 1" in rankdeck("status", first).stdout
    assert rankdeck.status(first)["swept"]["values"] == {"lr": "1"}
    shown = rankdeck("runs", "--sweep", "mine", "--sort", "acc").stdout.splitlines()
    assert shown[0].split()[1:] == ["lr", "state", "step", "seconds", "best", "acc", "last", "acc"]
    assert [(*line.split()[1:4], *line.split()[5:]) for line in shown[1:]] == [
        ("7", "failed", "3", "21", "21"),
        ("2", "succeeded", "3", "6", "6"),
        ("1", "succeeded", "3", "3", "3"),
    ]
    ranked = [row.split(",") for row in rankdeck("runs", "--sweep", "mine", "--csv").stdout.splitlines()]
    assert ranked[0][:7] == ["run", "lr", "state", "step", "seconds", "best loss", "best acc"]
    assert [row[1] for row in ranked[1:]] == ["1", "2", "7"]
    assert json.loads(rankdeck("runs", "--sweep", "mine", "--json").stdout)[0]["best"]["loss"] == 1 / 3
    (group,) = json.loads(rankdeck("runs", "--sweep", "mine", "--group", "lr", "--json").stdout)
    assert (group["values"], group["runs"], group["best"]["acc"]["mean"], group["last"]["acc"]["runs"]) == (
        {},
        3,
        10,
        3,
    )
    (row,) = [line.split() for line in rankdeck("runs", "--sweep", "mine", "--group", "lr").stdout.splitlines()[1:]]
    assert row == ["3", "1.1111", "1.0715", "3", "1.1111", "1.0715", "3"]
    check_err(rankdeck("runs", "--sweep", "mine", "--group", "seed"), 2, "mine has no setting 'seed'", "lr")
    check_err(rankdeck("runs", "--group", "lr"), 2, "--group belongs to --sweep")
    check_err(rankdeck("runs", "--sweep", "mine", "--sort", "accuracy"), 2, "choose one of: best,", "lr")
    check_err(rankdeck("runs", "--sweep", "none"), 2, "there is: mine")
    check_err(rankdeck("runs", "--csv"), 2, "--csv belongs to --sweep")


WORSE = """
import argparse, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--base", type=float, default=1.0)
base = parser.parse_args().base
signal.signal(signal.SIGTERM, lambda *_: sys.exit("saved"))
for step in range(1, 4):
    print(f"step {step}/3 val_loss {base + step}", flush=True)
while base > 1:
    time.sleep(0.1)
"""


def test_a_run_that_its_rule_stops_is_no_failure(rankdeck, write_profile):
    profile = write_profile(WORSE)
    rule = "metrics.stop_when=val_loss > best + 1 after 2"
    done = rankdeck("launch", profile, "--set", rule, "--set", 'recipe.args=["--base", "5"]')
    assert done.returncode == 0, done.stderr
    status = rankdeck.status("-")
    assert (status["state"], status["is_early"], status["failure"]) == ("stopped", True, None)
    assert "stopped: val_loss 8 > best 6 + 1 at step 3 (metrics.stop_when)" in done.stderr
    check_err(
        rankdeck("launch", profile, "--set", "metrics.stop_when=val_loss > worst"), 2, "metrics.stop_when", "best"
    )


def test_runs_of_a_sweep_that_fall_behind_its_best_are_stopped(rankdeck, write_profile):
    profile = write_profile(WORSE)
    words = ("--arg", "base=1,9", "--name", "mine", "--stop-when", "val_loss > sweep.best * 2")
    done = rankdeck("sweep", profile, *words)
    assert done.returncode == 0, done.stderr
    assert "stopped early: val_loss 12 > sweep.best 2 * 2 at step 3" in done.stderr
    listed = json.loads(rankdeck("runs", "--json").stdout)
    assert [(one["state"], one["is_early"]) for one in listed] == [("stopped", True), ("succeeded", False)]
