"""Which installed modules a script uses, as rank 0 tells."""

import os
import sys
from pathlib import Path

from tests.support import ROOT, entries, run_program

SCRIPT = entries("unit/script_imports", "script")


def said_by(folder: Path, text: str) -> list[str]:
    """The lines that a script prints."""
    script = folder / "train.py"
    script.write_text(text)
    done = run_program([sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    return done.stdout.splitlines()


def test_modules_that_a_script_imports_in_a_function_are_named_and_its_objects_are_not_kept(tmp_path: Path) -> None:
    named, kept = said_by(tmp_path, SCRIPT)
    assert named.startswith("msgspec")
    assert kept == "None"


LAZY = entries("unit/script_imports", "lazy")


def test_a_module_that_is_loaded_on_its_first_use_is_not_loaded_to_be_named(tmp_path: Path) -> None:
    assert said_by(tmp_path, LAZY) == ["tomlkit", "False"]


TIMED = entries("unit/script_imports", "timed")


def test_slow_imports_are_named_with_their_seconds_and_nothing_stays(tmp_path: Path) -> None:
    modules = {
        "outer": "import time, inner\ntime.sleep(0.2)\nimport quick\nfrom inner import Inner\n",
        "inner": "import time\ntime.sleep(0.2)\nimport json.tool\nclass Inner: pass\n",
        "quick": "",
    }
    installed = tmp_path / "site-packages"
    installed.mkdir()
    for name, text in modules.items():
        (installed / f"{name}.py").write_text(text)
    text = f"import sys\nsys.path.insert(0, {str(installed)!r})\n{TIMED}"
    *found, is_gone = said_by(tmp_path, text)
    seconds = {name: float(number or 0) for name, _, number in (word.partition("=") for word in found)}
    assert set(seconds) == {"outer", "quick"}
    assert seconds["outer"] >= 0.4
    assert seconds["quick"] == 0
    assert is_gone == "True"


FORKED = entries("unit/script_imports", "forked")


def test_a_forked_rank_looks_at_modules_of_the_template_only_where_they_are_of_the_script(tmp_path: Path) -> None:
    """Most modules of a template are installed ones. A rank that looked at them would copy their memory."""
    (tmp_path / "beside.py").write_text("import msgspec")
    (tmp_path / "later.py").write_text("import idna")
    assert said_by(tmp_path, FORKED) == ["idna msgspec", "False"]
