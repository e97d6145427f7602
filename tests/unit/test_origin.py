"""What a run was launched from: the commit, the changes, and nothing of a strange repository is ever run."""

import os
import shutil
from pathlib import Path

import pytest

from engine.core.plan.secrets import HIDDEN
from engine.core.views.origin import kept_environment
from engine.runs.origins import git as module
from engine.runs.origins.git import Found, read_code
from tests.support import run_program

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = run_program(["git", *identity, "-C", str(folder), *words], env={**os.environ, **own}, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on how fast the machine is."""
    monkeypatch.setattr(module, "TIME_LIMIT", 600.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "work 'and' more"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def code_of(folder: Path) -> Found:
    found = read_code(folder)
    assert found is not None
    return found


def test_the_commit_and_what_is_not_committed_are_read(repository: Path):
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "new.py").write_text("x = 1\n")
    found = code_of(repository / "sub")
    code = found.code
    assert (code.commit, code.branch) == (git(repository, "rev-parse", "HEAD"), "main")
    assert (code.changed, code.untracked, code.is_cut) == (("train.py",), ("new.py",), False)
    assert b"-lr = 1\n+lr = 2\n" in found.diff


def test_a_clean_repository_has_no_diff(repository: Path):
    found = code_of(repository)
    assert (found.code.changed, found.diff) == ((), b"")
    assert found.code.words == f"{found.code.commit[:10]} main"


def test_a_folder_without_a_repository_and_one_without_a_commit(tmp_path: Path):
    assert read_code(tmp_path) is None
    git(tmp_path, "init", "-q")
    found = code_of(tmp_path)
    assert found.code.trouble == "it has no commit"


def test_no_program_that_a_repository_names_is_run(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\necho \"$@\" >> '{sprung}'\ncat\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external", "diff.evil.command",
                "diff.evil.textconv", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process",
                "filter.a b.clean", "gpg.program", "credential.helper", "pager.diff"):  # fmt: skip
        git(repository, "config", key, str(trap))
    git(repository, "config", "filter.evil.required", "true")
    git(repository, "config", "core.hooksPath", str(tmp_path / "hooks"))
    (tmp_path / "hooks").mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(trap, tmp_path / "hooks" / hook)
    (repository / ".gitattributes").write_text('*.py filter=evil diff=evil\n*.txt filter="a b"\n')
    (repository / "train.py").write_text("lr = 2\n")
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, str(trap))
    found = code_of(repository)
    assert b"+lr = 2" in found.diff
    assert not sprung.exists(), sprung.read_text()


def test_a_filter_whose_name_can_not_be_switched_off_is_refused(repository: Path):
    git(repository, "config", "filter.a=b.clean", "cat")
    found = code_of(repository)
    assert (found.code.commit, found.diff) == ("", b"")
    assert "filter" in found.code.trouble


def test_a_repository_of_another_user_is_not_read(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = code_of(repository)
    assert (found.code.commit, found.code.trouble) == ("", "it belongs to another user")


def test_a_large_diff_is_cut(repository: Path, monkeypatch: pytest.MonkeyPatch):
    (repository / "train.py").write_text("x = 1\n" * 1000)
    monkeypatch.setattr(module, "MAX_DIFF", 400)
    found = code_of(repository)
    assert (len(found.diff), found.code.is_cut) == (400, True)


def test_git_that_does_not_answer_is_ended(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "TIME_LIMIT", 0.3)
    found = code_of(repository)
    assert "did not answer" in found.code.trouble
    if (pid := tmp_path / "pid").exists():
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_secrets_and_variables_of_the_login_are_not_kept():
    kept = kept_environment({"API_TOKEN": "abc", "SSH_CLIENT": "1.2.3.4", "NCCL_DEBUG": "INFO", "LONG": "x" * 9999})
    assert kept == {"API_TOKEN": HIDDEN, "LONG": "x" * 2000, "NCCL_DEBUG": "INFO"}
