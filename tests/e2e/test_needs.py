"""A torch or a Python that is too old for the ranks is refused by name, by `check` and at launch."""

import venv
from pathlib import Path

import pytest

from tests.conftest import WriteProfile
from tests.support import Deck, checked, from_table


@pytest.fixture
def write_environment(tmp_path: Path):
    """Makes an environment whose torch has this version."""

    def write(version: str) -> str:
        folder = tmp_path / "environment"
        venv.create(folder)
        packages = next(folder.glob("lib/python3*/site-packages"))
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
        (packages / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda = None\n")
        return str(folder / "bin" / "python")

    return write


@from_table
def test_an_old_torch_is_refused_by_name(
    version: str, recipe: str, backend: str, need: str, rankdeck: Deck, write_profile: WriteProfile, write_environment
):
    python = write_environment(version)
    profile = write_profile({"name": recipe}, ranks=2, backend={"name": backend}, launch={"python": python})
    fact = f"torch {version} is too old: {need}"
    for words in (["--quick"], []):
        found = checked(rankdeck, profile, *words, status=3)["localhost", "torch"]
        assert found["state"] == "fail", found
        assert found["text"].startswith(fact)
        assert "set launch.python to a Python with torch " in found["hint"]
    reason = rankdeck.wait_state(rankdeck.launch(profile), "failed")["doing"]
    assert reason.startswith(f"localhost: {fact}")
    assert "set launch.python to a Python with torch " in reason


def test_another_torch_on_the_path_of_ranks_counts(rankdeck, write_profile, write_environment, tmp_path):
    python, newer = write_environment("1.13.1"), tmp_path / "newer"
    (newer / "torch").mkdir(parents=True)
    (newer / "torch" / "__init__.py").write_text("__version__ = '2.9.1'\n")
    (newer / "torch" / "version.py").write_text("__version__ = '2.9.1'\n")
    (newer / "torch" / "distributed.py").write_text(
        "import time\ntime.sleep(3600)\n"
    )  # the store begins, and ends no run
    launch = {"python": python, "warm": False}
    profile = write_profile("import torch; print(torch.__version__)\n", launch=launch, env={"PYTHONPATH": str(newer)})
    assert checked(rankdeck, profile, "--quick")["localhost", "torch"]["text"].startswith("2.9.1")
    run = rankdeck.launch(profile)
    rankdeck.wait_log(run, 0, b"2.9.1")


def test_a_program_that_is_not_python_brings_what_it_needs(rankdeck, write_environment, write_script, launch):
    script = write_script("own.sh", "#!/bin/sh\necho hello\n")
    run = launch(script, launch={"python": write_environment("1.13.1")})
    rankdeck.wait_state(run, "succeeded")
