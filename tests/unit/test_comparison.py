"""What differs between runs: settings, plan, code, versions and environment."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.layout import parse_nodes
from engine.core.plan.plan import BackendSettings, NodeFacts, build_plan
from engine.core.plan.secrets import HIDDEN
from engine.core.plan.settings import changes, launched_settings
from engine.core.views.comparison import Side, code_difference, compare, files_of, new_since
from engine.core.views.origin import Code, Origin
from tests.support import entries

PATCH = entries("unit/comparison", "patch")


def side(
    run: str,
    *,
    env: dict[str, str] | None = None,
    python: str = "/usr/bin/python3",
    workdir: str = "/project",
    sections: dict[str, Any] | None = None,
    **facts: Any,
) -> Side:
    data = {
        "schema": 1,
        "name": "job",
        "layout": {"nodes": "localhost:2"},
        "recipe": {"name": "linear"},
        "env": env or {},
        **(sections or {}),
    }
    profile = profile_from_data(data, "job.toml")
    node = NodeFacts(name="localhost", cores=2, gpus=0, python=python)
    backend = BackendSettings(name="gloo", env={}, device="cpu")
    script = profile.recipe.script and str(Path(workdir, profile.recipe.script))
    absolute = replace(profile, recipe=replace(profile.recipe, script=script))
    plan = build_plan(absolute, parse_nodes("localhost:2", "auto"), (node,), backend, workdir=workdir)
    settings = launched_settings(profile, plan)
    return Side(run=run, results={"loss": 1.0}, settings=settings, plan=plan, **facts)


def origin(**facts: Any) -> Origin:
    return Origin(**{"at": 1.0, "host": "here", "versions": {"torch": "2.9.0"}, "environment": {"A": "1"}, **facts})


def rows(*sides: Side) -> dict[str, dict[str, tuple[str, ...]]]:
    return {part.title: {row.name: row.values for row in part.rows} for part in compare(sides)}


def test_what_is_new_is_one_line_and_values_that_are_long_or_hashes_are_left_out():
    before = side("a", env={"LR": "1"}, origin=origin(script="12ab", versions={"torch": "2.9.0", "x": "1"}))
    after = side("b", env={"LR": "2", "B": "a b " * 20}, origin=origin(script="34cd"))
    assert (
        new_since(before, after)
        == "new since a: env.LR 2 (was 1), env.B (another one), script (another one), x - (was 1)"
    )
    assert new_since(before, before) == ""


def test_equal_runs_have_results_only():
    assert rows(side("a", origin=origin()), side("b", origin=origin(at=2.0))) == {"results": {"loss": ("1", "1")}}


def test_each_subject_names_what_differs():
    code = Code(root="/project", commit="a" * 40, branch="main", changed=("train.py",))
    before = side("a", env={"TOKEN": "x"}, origin=origin(code=code), patch=PATCH)
    after = side("b", python="/opt/python", origin=origin(code=code, versions={"torch": "2.10.0"}, environment={}))
    assert rows(before, after) == {
        "results": {"loss": ("1", "1")},
        "settings": {"env.TOKEN": (HIDDEN, "-")},
        "plan": {"python": ("/usr/bin/python3", "/opt/python")},
        "code": {"not committed": ("train.py +1 -1, model.py +1 -0", "-")},
        "versions": {"torch": ("2.9.0", "2.10.0")},
        "environment": {"A": ("1", "-")},
    }


def test_a_path_that_profiles_write_in_two_ways_is_the_same():
    short = {"recipe": {"script": "train.py"}, "launch": {"workdir": "."}}
    long = {"recipe": {"script": "/project/train.py"}, "launch": {"workdir": "/project"}}
    first, again = side("a", sections=short), side("b", sections=long)
    assert set(rows(first, again)) == {"results"}
    assert first.settings is not None
    assert again.settings is not None
    assert changes(first.settings, again.settings) == []
    elsewhere = side("c", sections=short, workdir="/other")
    assert rows(first, elsewhere)["settings"] == {
        "recipe.script": ("/project/train.py", "/other/train.py"),
        "launch.workdir": ("/project", "/other"),
    }
    assert [change.key for change in changes(first.settings, elsewhere.settings or {})] == [
        "recipe.script", "launch.workdir"]  # fmt: skip


def test_a_run_of_which_nothing_was_recorded_does_not_differ_in_everything():
    found = rows(side("a", origin=origin(code=Code(root="/project", commit="a" * 40))), side("b"))
    assert set(found) == {"results"}


def test_the_same_change_on_another_blob_is_the_same():
    assert files_of(PATCH) == files_of(PATCH.replace("8f1e2b0", "9999999"))
    assert list(files_of(PATCH)) == ["train.py", "model.py"]


def test_the_difference_of_two_changes_shows_only_files_that_differ():
    lines = code_difference(side("a", patch=PATCH), side("b", patch=PATCH.replace("lr = 2", "lr = 3")))
    assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == ["-+lr = 2", "++lr = 3"]
    assert not any("model.py" in line for line in lines)
