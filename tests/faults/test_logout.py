"""A login ends, and with it its processes or its runtime folder; the run must not go with it."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteProfile
from tests.support import LIGHT, ROOT, Deck, FakeBusctl, entries, fake_systemd, kill_hard, wait_until

ENDLESS = entries("slurm/ends", "endless")
"""Rank 0 has a whole checkpoint of step 2, and writes another one from SIGTERM on, until it is killed."""

COUNTS = entries("faults/logout", "counts")


@pytest.fixture
def other_login() -> Iterator[str]:
    """The runtime folder of a later login."""
    folder = tempfile.mkdtemp(prefix="rd")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def status(rankdeck: Deck, login: str) -> dict[str, Any]:
    done = rankdeck("status", "-", "--json", env={"XDG_RUNTIME_DIR": login})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_is_found_again_after_its_login_has_ended(rankdeck, write_profile, other_login: str):
    profile = write_profile(COUNTS, ranks=2)
    run = json.loads(rankdeck("launch", profile, "--detach", "--json").stdout)["run"]
    before = wait_until(lambda: (found := status(rankdeck, os.environ["XDG_RUNTIME_DIR"]))["step"] and found)
    folder = rankdeck.home / "runs" / run
    old_agent = (folder / "nodes/localhost/socket").read_text()
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    shutil.rmtree(runtime.rename(runtime.with_name(f"{runtime.name} is gone")))  # at once: others make files in it

    where = folder / "supervisor.json"
    wait_until(lambda: Path(json.loads(where.read_text())["socket"]).exists(), what="the supervisor listens anew")
    assert status(rankdeck, other_login)["step"] >= before["step"]

    wait_until(lambda: (folder / "nodes/localhost/socket").read_text() != old_agent, what="the agent listens anew")
    kill_hard(json.loads(where.read_text())["pid"])
    wait_until(
        lambda: (status(rankdeck, other_login)["step"] or 0) > before["step"], what="a new supervisor has the ranks"
    )
    after = status(rankdeck, other_login)
    assert [rank["pid"] for rank in after["ranks"]] == [rank["pid"] for rank in before["ranks"]]
    assert rankdeck("stop", "-", "--now", env={"XDG_RUNTIME_DIR": other_login}).returncode == 0
    rankdeck("wait", "-", env={"XDG_RUNTIME_DIR": other_login})
    os.mkdir(os.environ["XDG_RUNTIME_DIR"])


IN_SESSION = entries("faults/logout", "in_session")
"""A sitecustomize with which a supervisor finds faked files of systemd."""


@pytest.fixture
def busctl(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBusctl:
    """The user's manager where systemd ends supervisors with their session."""
    root, fake = fake_systemd(tmp_path, monkeypatch)
    folder = tmp_path / "in_session"
    folder.mkdir()
    text = IN_SESSION.format(light=str(LIGHT / "sitecustomize.py"), product=str(ROOT), root=str(root))
    (folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{LIGHT}")
    return fake


@pytest.mark.parametrize("answer", ["taken", "refused", "in a job"])
def test_a_supervisor_leaves_a_session_that_would_end_it_unless_it_is_of_a_job(
    rankdeck: Deck,
    write_profile: WriteProfile,
    busctl: FakeBusctl,
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if answer == "refused":
        busctl.end_with("exit 1")
    if answer == "in a job":
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    profile = write_profile(COUNTS)
    run = json.loads(rankdeck("launch", profile, "--detach", "--json").stdout)["run"]
    where = json.loads((rankdeck.home / "runs" / run / "supervisor.json").read_text())
    asked = [argv[argv.index("PIDs") + 3] for argv in busctl.calls()]
    assert asked == ([] if answer == "in a job" else [str(where["pid"])])
    rankdeck("stop", "-", "--now")
    rankdeck("wait", "-")


@pytest.mark.parametrize("boot", ["", "another"])
def test_a_save_that_is_cut_off_with_everything_of_the_run_is_told_and_set_aside(
    rankdeck: Deck, write_profile: WriteProfile, work: Path, boot: str
) -> None:
    launch = {"on_torn": "set-aside", "on_failure": "stop"}
    run = rankdeck.launch(write_profile(ENDLESS, ranks=2, launch=launch))
    folder = rankdeck.folder(run)
    wait_until(lambda: (rankdeck.status(run)["step"] or 0) > 5, what="the ranks train")
    os.kill(rankdeck.pids(run)[0], signal.SIGTERM)
    wait_until(lambda: "CheckpointFolderSeen" in (folder / "journal.jsonl").read_text(), what="the save is seen")
    wait_until(lambda: len(list((work / "ckpt").iterdir())) == 2, what="it is the second one")
    while left := rankdeck.processes():
        for process in left:
            kill_hard(process.pid)
    if boot:
        state = json.loads((folder / "nodes/localhost/agent.json").read_text())
        (folder / "nodes/localhost/agent.json").write_text(json.dumps({**state, "boot": boot}))
    saved = rankdeck.wait_state(run, "failed")["saved"]
    (torn,) = (work / "ckpt").glob("*.torn")
    words = f"ckpt/{torn.stem} was being written when attempt 0 ended, and is now {torn.name}; ckpt/step_2.pt is whole"
    assert words in saved["words"]
