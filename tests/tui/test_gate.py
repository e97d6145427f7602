"""The app in a stranger's folder starts nothing, wherever the cursor rests."""

from pathlib import Path
from typing import Any

import pytest

from engine.client.engine import LocalEngine
from tests.hostile import hostile_folder, nothing_starts, write_hostile
from tests.tui.seen import after
from tui.app import RankdeckApp

PROFILES: dict[str, dict[str, Any]] = {
    "a-setup": {"backend": {"name": "mpi"}, "launch": {"setup": "./evil"}},
    "b-proxy": {"backend": {"name": "auto"}, "layout": {"nodes": "a,b", "ssh_options": ["-oProxyCommand=./evil"]}},
    "c-wrap": {"backend": {"name": "auto"}, "launch": {"wrap": ["./wrap.sh"]}},
    "d-venv": {"backend": {"name": "mpi"}, "env": {"LD_PRELOAD": "./evil", "PYTHONPATH": "."}},
}


async def test_opening_resting_editing_and_checking_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / "work"
    work.mkdir()
    folder = hostile_folder(work)
    for name, data in PROFILES.items():
        write_hostile(folder, name, {"schema": 1, "recipe": {"script": "train.py"}, **data})
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tui.screens.home.WARM_SECONDS", 0.0)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    app = RankdeckApp(LocalEngine())
    with nothing_starts() as started:
        async with app.run_test(notifications=True, size=(120, 40)) as pilot:
            for number, name in enumerate(PROFILES):
                await after(pilot, (*["down"] * min(number, 1),), f"Plan: {name} (here)", "T trusts it")
                await after(pilot, "c", f"Trust {name}?")
                await after(pilot, "n", gone=f"Trust {name}?")
                await after(pilot, "q", f"Plan: {name} (here)")
                await after(pilot, "e", "not looked up:", "Edit")
                await after(pilot, "down escape", f"Plan: {name} (here)")
    assert started == []
    assert not (work / "ran").exists()
