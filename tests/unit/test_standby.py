"""Which launches standbys and templates serve, how long a template stays, and when it gives its memory back."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.commands.clean import end_templates
from engine.core.errors import CheckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import LINGER, Circumstances, can_stand_by, linger_seconds, standby_key, template_key
from engine.gate import LAUNCHED
from engine.node.limits import is_memory_short, memory_left
from engine.node.probe.allowed import has_room_for_template
from engine.node.user_template import likeness
from engine.planning.make import make_plan
from engine.runs.imports import MOST_KEPT, recall_imports, remember_modules, remember_refusal
from engine.runs.standbys import circumstances
from engine.runs.templates import template_folder, templates
from tests.support import from_table, parse_profile, rows

GIB = 1 << 30
SHELL = Circumstances(
    environ={"PATH": "/bin", "PWD": "/work", "BAD": "\udcff"},
    limits=((1024, 4096),),
    umask="Umask:\t0022",
    cores=(0, 1),
    cgroups="0::/user.slice/user-7.slice/session-3.scope\n",
    namespaces=("mnt:[1]",),
    code="1.0 5",
)


def plan_of(launch: str = "", rest: str = "") -> LaunchPlan:
    text = f'schema = 1\nname = "a"\n[recipe]\nname = "linear"\n[launch]\n{launch}\n{rest}'
    return make_plan(parse_profile(text, file="p.toml"), LAUNCHED)


def key(own: Circumstances = SHELL, **changed: Any) -> str:
    return standby_key(plan_of(), msgspec.structs.replace(own, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        *rows("unit/standby", "another_terminal_or_login_of_the_user_is_served"),
        {"environ": {**SHELL.environ, "SHLVL": "3", "TMUX_PANE": "%4", "_": "/usr/bin/rankdeck", "OLDPWD": "/"}},
    ],
)
def test_another_terminal_or_login_of_the_user_is_served(changed: dict[str, Any]) -> None:
    assert key(**changed) == key()


@pytest.mark.parametrize(
    "changed",
    [
        *rows("unit/standby", "whoever_hands_down_something_else_is_not_served"),
        {"environ": {**SHELL.environ, "TOKEN": "x"}},
        {"environ": {**SHELL.environ, "PWD": "/elsewhere"}},
        {"environ": {**SHELL.environ, "BAD": "\udcfe"}},
    ],
)
def test_whoever_hands_down_something_else_is_not_served(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


@from_table
def test_another_setup_environment_or_preload_of_the_profile_is_not_served(launch: str, rest: str) -> None:
    assert standby_key(plan_of(launch, rest), SHELL) != key()


def test_a_key_shows_no_variable_and_that_of_this_process_stays_the_same() -> None:
    assert "PATH" not in key()
    assert len(key()) == 64
    assert circumstances() == circumstances()


def test_a_standby_helps_only_where_ranks_are_forked_on_this_machine() -> None:
    plan = plan_of()
    assert can_stand_by(plan)
    assert not can_stand_by(msgspec.structs.replace(plan, launch=msgspec.structs.replace(plan.launch, warm=False)))
    node = msgspec.structs.replace(plan.nodes[0], transport="ssh")
    assert not can_stand_by(msgspec.structs.replace(plan, nodes=(node,)))


@pytest.mark.parametrize(
    ("wanted", "variable", "in_job", "seconds"),
    [
        *rows("unit/standby", "the_profile_says_how_long_it_stays_then_the_environment_and_none_stays_in_a_job"),
        (None, None, False, LINGER),
        (None, "", False, LINGER),
    ],
)
def test_the_profile_says_how_long_a_template_stays_then_the_environment_and_none_stays_in_a_job(
    wanted: Any, variable: str | None, in_job: bool, seconds: float
) -> None:
    assert linger_seconds(wanted, variable, in_job=in_job) == seconds


@pytest.mark.parametrize("variable", ["soon", "-1", "nan", "1e9"])
def test_a_wrong_value_in_the_environment_is_refused_with_its_name(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKDECK_LINGER", variable)
    with pytest.raises(CheckError, match="RANKDECK_LINGER"):
        plan_of()


@from_table
def test_memory_is_short_below_a_tenth_or_eight_gib(available: int, total: int, short: bool, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {total << 20} kB\nMemAvailable: {available << 20} kB\n")
    assert is_memory_short(str(tmp_path)) is short


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, (3 * GIB, 16 * GIB)),
        ({"memory.max": "max", "memory.current": f"{GIB}"}, (3 * GIB, 16 * GIB)),
        ({"memory.max": f"{4 * GIB}", "memory.current": f"{3 * GIB}"}, (GIB, 4 * GIB)),
        (
            {
                "memory.max": f"{4 * GIB}",
                "memory.current": f"{4 * GIB}",
                "memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            (GIB, 4 * GIB),
        ),
    ],
)
def test_the_tightest_of_machine_and_control_group_says_how_much_memory_is_left(
    tmp_path: Path, files: dict[str, str], left: tuple[int, int]
) -> None:
    group = tmp_path / "sys/fs/cgroup/jobs"
    for path, text in {
        tmp_path / "proc/self/cgroup": "0::/jobs\n",
        tmp_path
        / "proc/meminfo": f"MemTotal: {16 << 20} kB\nMemFree: 9 kB\nMemAvailable: {3 << 20} kB\nHugePages_Total: 0\n",
        **{group / name: text for name, text in files.items()},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_left(str(tmp_path)) == left


def test_a_system_that_does_not_say_how_much_memory_it_has_is_left_alone(tmp_path: Path) -> None:
    assert memory_left(str(tmp_path)) is None


def test_clean_removes_what_a_killed_template_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = template_folder("key")
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "note.json").write_text('{"pid": 1, "start": 1, "python": "python"}')
    assert list(templates()) == []
    end_templates(as_json=False)
    assert capsys.readouterr().out == "there is no template\n"
    assert not folder.exists()


def like(environ: dict[str, str] | None = None, *cores: int) -> str:
    return likeness({"PYTHONPATH": "/library", **(environ or {})}, list(cores), ["KNOWN"])


@from_table
def test_a_fork_may_have_other_variables_but_those_that_are_read_at_the_start(environ: dict[str, str], is_same: bool):
    assert (like(environ) == like()) is is_same


def test_cores_matter_only_where_libraries_count_them() -> None:
    assert like({}, 0) != like()
    assert like({"OMP_NUM_THREADS": "1"}, 0) == like({"OMP_NUM_THREADS": "1"})
    assert "secret" not in like({"LD_LIBRARY_PATH": "secret"})


@pytest.mark.parametrize(
    "changed",
    [{"cgroups": "0::/system.slice/job_7\n"}, {"namespaces": ("mnt:[2]",)}, {"niceness": 5}, {"code": "1.0 6"}],
)
def test_another_control_group_or_namespace_makes_another_template(changed: dict[str, Any]) -> None:
    own = msgspec.structs.replace(SHELL, environ={})
    assert template_key(plan_of(), msgspec.structs.replace(own, **changed), "") != template_key(plan_of(), own, "")


def test_a_setup_or_other_modules_make_another_template() -> None:
    keys = {template_key(plan_of(one), SHELL, "") for one in ("", 'setup = "module load a"', 'preload = ["numpy"]')}
    assert len(keys) == 3


@pytest.mark.parametrize(("limit", "has_room"), [("max", True), (str(8 * GIB), True), (str(8 * GIB - 1), False)])
def test_no_template_waits_where_a_control_group_allows_less_than_8_gib(tmp_path: Path, limit: str, has_room: bool):
    group = tmp_path / "sys/fs/cgroup/jobs"
    for path, text in {
        tmp_path / "proc/self/cgroup": "0::/jobs\n",
        tmp_path / "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n",
        group / "memory.max": limit,
        group / "memory.current": "0",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert has_room_for_template(str(tmp_path)) is has_room


def test_the_next_plan_preloads_what_the_last_run_used_and_no_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    plan = plan_of('preload = "auto"')
    assert plan.preload == ()
    remember_modules(plan, ("numpy", "msgspec", "not a module"), {})
    remember_refusal(plan, "numpy", "starts threads")
    assert plan_of('preload = "auto"').preload == ("msgspec",)
    assert plan_of().preload == ()
    (kept,) = (tmp_path / "imports").glob("*.json")
    kept.unlink()
    os.mkfifo(kept)
    assert plan_of('preload = "auto"').preload == (), "a pipe in its place is not waited for"


def test_modules_that_ranks_import_slowly_are_offered_where_they_can_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    plan = plan_of()
    remember_modules(
        plan, ("numpy", "slow", "refused", "quick"), {"numpy": 0.9, "slow": 4.7, "refused": 3.0, "quick": 0.4}
    )
    remember_refusal(plan, "refused", "starts a thread")
    assert plan_of().slow_imports == (("numpy", 0.9), ("slow", 4.7))
    assert plan_of('preload = ["numpy"]').offered_preload == ("numpy", "slow")
    assert plan_of('preload = "auto"').slow_imports == ()
    assert plan_of("warm = false").slow_imports == ()
    remember_modules(plan, ("slow",), {})
    assert plan_of().slow_imports == (("slow", 4.7),), "a run that shared it has no newer figure"


def test_scripts_that_have_not_run_for_longest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    plan, replace = plan_of(), msgspec.structs.replace
    plans = [replace(plan, launch=replace(plan.launch, workdir=f"/work{at}")) for at in range(MOST_KEPT + 1)]
    for number, plan in enumerate(plans):
        remember_modules(plan, ("numpy",), {})
        if number == 0:
            (first,) = (tmp_path / "imports").glob("*.json")
            os.utime(first, (1, 1))
    assert [bool(recall_imports(plan).modules) for plan in plans] == [False] + [True] * MOST_KEPT
