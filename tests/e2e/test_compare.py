"""`rankdeck compare`: results side by side, and what differs."""

import json
import subprocess

import pytest

from engine.core.plan.secrets import HIDDEN
from tests.support import entries

TRAIN = entries("e2e/compare", "train")

IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


@pytest.fixture
def runs(rankdeck, write_script, write_profile):
    """Two runs that differ in one argument, in two variables and in a line of the script, which is not committed."""
    path = write_script("train.py", TRAIN)
    script = str(path)
    for words in (["init", "-q", "-b", "main"], ["add", "train.py"], [*IDENTITY, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=path.parent, check=True)
    found: list[str] = []
    for loss, token in (("3", "first-secret"), ("6", "second-secret")):
        if found:
            path.write_text(f"# changed\n{TRAIN}")
        recipe = {"script": script, "args": [loss, "two words", "--api-key", f"secret-{loss}"]}
        profile = write_profile(recipe, env={"API_TOKEN": token, "MODE": loss}, name=f"job{loss}")
        done = rankdeck("launch", profile)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split()[0])
    return found


def test_results_and_differences_stand_side_by_side(rankdeck, runs):
    done = rankdeck("compare", *runs)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:] if line}
    assert done.stdout.splitlines()[0].split() == runs
    assert lines["state"] == ["succeeded", "succeeded"]
    assert lines["loss"] == ["1", "2"]
    assert lines["accuracy"] == ["0.5", "0.5"]
    assert lines["env.MODE"] == ["3", "6"]
    assert lines["argument"] == ["1", "3", "6"]
    assert lines["--api-key"] == [HIDDEN, HIDDEN]
    assert "recipe.script" not in lines
    assert "secret" not in done.stdout

    found = json.loads(rankdeck("compare", runs[0], "--json").stdout)
    assert [one["run"] for one in found] == runs
    assert [one["results"]["loss"] for one in found] == [1.0, 2.0]
    assert [one["results"]["repeated steps"] for one in found] == [0, 0]
    assert [one["differs"]["argument 1"] for one in found] == ["3", "6"]
    assert [one["differs"]["--api-key"] for one in found] == [HIDDEN, HIDDEN]
    assert "secret" not in json.dumps(found)
    assert [one["code"]["not committed"] for one in found] == ["-", "train.py +1 -0"]
    assert [set(one) for one in (found[0]["versions"], found[0]["environment"])] == [set(), set()]
    assert "+# changed" in rankdeck("compare", *runs, "--code").stdout
    assert rankdeck.folder(runs[0]).joinpath("origin_0.json").stat().st_mode & 0o777 == 0o600


def test_a_run_is_not_compared_with_itself(rankdeck, runs):
    refused = rankdeck("compare", runs[1])
    assert (refused.returncode, refused.stdout) == (2, "")
    (rankdeck.folder(runs[0]) / "profile.toml").write_text("damaged")
    done = rankdeck("compare", *runs)
    assert "succeeded" in done.stdout
    assert done.stderr == f"rankdeck: the profile of {runs[0]} can't be read, so settings are left out\n"


def test_the_history_tells_what_differs_from_the_run_before(rankdeck, write_script, write_profile):
    script = str(write_script("train.py", TRAIN))
    for loss in ("3", "6"):
        done = rankdeck("launch", write_profile({"script": script, "args": [loss]}, name="job"))
        assert done.returncode == 0, done.stderr
    newest, first = json.loads(rankdeck("runs", "--json", "job").stdout)
    assert (newest["loss"], newest["metrics"]["accuracy"], newest["step"]) == (2.0, 0.5, 3)
    assert newest["changes"] == [{"key": "argument 1", "before": "3", "after": "6"}]
    assert first["changes"] is None
    assert newest["size"] > 0
    assert newest["nodes"] == ["localhost"]
    assert [one["run"] for one in json.loads(rankdeck("runs", "--sort", "loss", "--json").stdout)] == [
        first["run"],
        newest["run"],
    ]
    assert rankdeck("runs", "--sort", "los").returncode == 2

    assert rankdeck("note", first["run"], "the baseline", "--star").returncode == 0
    line = next(line for line in rankdeck("runs", "baseline").stdout.splitlines() if first["run"] in line)
    assert line.startswith("*")
    assert rankdeck("gc").returncode == 2
    assert json.loads(rankdeck("gc", "--keep", "0", "--yes", "--json").stdout) == [newest["run"]]
    assert [one["run"] for one in json.loads(rankdeck("runs", "--json").stdout)] == [first["run"]]
