"""What must stay light and what must stay pure: seen in fresh processes, and in the source of the core."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from tests.support import entries, from_table, run_program

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "textual", "rich", "numpy", "plotext", "tui"}
IMPURE = {"asyncio", "os", "subprocess", "time", "socket", "threading", "multiprocessing", "pathlib", "shutil", "tempfile",
          "random", "secrets", "datetime", "signal", "selectors", "io", "sys"}  # fmt: skip
"""I/O, clocks, processes and chance. `signal` is taken for the names of numbers only; see the test."""


def loaded(code: str, *arguments: str) -> set[str]:
    """Top-level names of the modules that a fresh Python has loaded after some code."""
    return {name.partition(".")[0] for name in loaded_modules(code, *arguments)}


def loaded_modules(code: str, *arguments: str) -> set[str]:
    report = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "RANKDECK_"))}
    done = run_program([sys.executable, "-c", code + report, *arguments], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(names)


COMMAND = "import sys, rankdeck_command\ntry: rankdeck_command.main()\nexcept SystemExit: pass"


@from_table
def test_the_engine_loads_neither_torch_nor_the_app(module):
    assert loaded(f"import {module}") & HEAVY == set()


def test_what_explains_failures_is_loaded_when_one_is_explained():
    modules = loaded_modules("import engine.core.views.views, engine.commands.show, tui.app")
    assert not modules & {"engine.core.failures.verdict", "engine.core.failures.text.evidence"}


@pytest.mark.parametrize("words", [("--help",), ("launch", "--help"), ("--version",), ("profiles",), ("plan", "quickstart"), ("ps",)], ids=" ".join)  # fmt: skip
def test_the_command_line_loads_neither_torch_nor_the_app(words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert loaded(COMMAND, *words) & HEAVY == set()


@from_table
def test_what_every_start_would_wait_for_is_imported_later(module, later):
    report = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = run_program([sys.executable, "-c", report], cwd=ROOT, check=True)
    assert set(later) & set(done.stdout.split()) == set()


def test_the_rank_package_loads_the_standard_library_only():
    ours = loaded("import rankdeck") - loaded("pass")
    assert ours - set(sys.stdlib_module_names) == {"rankdeck"}


def test_logging_a_metric_loads_the_standard_library_only(tmp_path):
    code = f"import os\nos.environ['RANKDECK_METRICS'] = {str(tmp_path / 'metrics')!r}\nimport rankdeck\nrankdeck.log(step=1, loss=0.5)"
    assert (loaded(code) - loaded("pass")) - set(sys.stdlib_module_names) == {"rankdeck"}
    assert json.loads((tmp_path / "metrics").read_text())["step"] == 1


def imports(path: Path) -> set[str]:
    """Top-level names that a module imports, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    names |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted((ROOT / "engine" / "core").rglob("*.py")), ids=lambda path: path.stem)
def test_the_core_does_no_io_and_has_no_clock(path):
    allowed = {"signal"} if path.stem in ("state", "diagnosis", "known", "verdict", "launcher_log") else set()
    if path.stem == "catalogue":
        allowed = {"pathlib"}  # the type of a field
    if path.stem == "numbers":
        allowed = {"time"}  # `localtime` and `gmtime` of a moment that is given
    assert imports(path) & IMPURE <= allowed


@pytest.mark.parametrize("path", sorted((ROOT / "engine" / "core").rglob("*.py")), ids=lambda path: path.stem)
def test_the_core_calls_nothing_that_reads_or_writes(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & {"open", "print", "input", "exec", "eval", "__import__"} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "engine" / "core").rglob("*.py")), ids=lambda path: path.stem)
def test_the_core_imports_no_layer_above_it(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    assert all(one.startswith("engine.core") for one in ours if one.partition(".")[0] in ("engine", "tui", "rankdeck"))


def test_nothing_in_a_rank_imports_engine_or_tui():
    """A rank's `sys.path[0]` is the user's folder, which may hold an `engine.py`."""
    for path in (ROOT / "rankdeck").rglob("*.py"):
        assert imports(path) & {"engine", "tui"} == set(), path


@from_table
def test_make_versions_calls_each_function_that_uses_a_private_name(name, path):
    program = entries("versions/versions", "names")
    functions = [one.name for one in ast.parse((ROOT / path).read_text()).body if isinstance(one, ast.FunctionDef)]
    assert [one for one in functions if one[0] != "_" and f"{name}.{one}" not in program] == []
