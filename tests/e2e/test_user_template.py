"""The template of a user: runs share it, it outlives them, and leaves nothing behind.

A package of a few lines stands in for torch.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.linux.processes import MARK
from engine.runs.templates import templates
from tests.support import LIGHT, Deck, entries, is_alive, kill_hard, parent_of, wait_gone, wait_until

TORCH = entries("e2e/user_template", "torch")
SAY = entries("e2e/user_template", "say")


class Lab:
    """Launches two warm ranks with the package that stands in for torch, which is installed in `site`."""

    def __init__(self, deck: Deck, work: Path, write_script: Any, write_profile: Any) -> None:
        self.deck, self.work = deck, work
        self.site = work / "installed" / "site-packages"
        shutil.copytree(LIGHT / "store" / "torch", self.site / "torch")
        (self.site / "torch" / "__init__.py").write_text(TORCH)
        self._script, self._profile = write_script("say.py", SAY), write_profile

    def profile(self, *args: str, env: dict[str, str] | None = None, **launch: Any) -> Path:
        """A profile of the script."""
        sections = {"warm": True, "linger": 300, "on_failure": "stop", **launch}
        path = os.pathsep.join([*(env or {}).pop("MORE_PATH", "").split(), str(self.site)])
        recipe = {"script": str(self._script), "args": list(args)}
        profile: Path = self._profile(recipe, ranks=2, launch=sections, env={"PYTHONPATH": path, **(env or {})})
        return profile

    def launch(self, *args: str, env: dict[str, str] | None = None, **launch: Any) -> str:
        """Starts a run, which goes on while there is a file `hold`."""
        return self.deck.launch(self.profile(*args, env=env, **launch))

    def finish(self, run: str) -> int:
        """Waits for the end of a run. Returns the exit status of `wait`."""
        return self.deck("wait", run).returncode

    def words(self, run: str, rank: int = 0) -> list[str]:
        """What a rank says: up, its pid, its parent, LR and what torch has read."""
        return self.deck.wait_log(run, rank, b"up").decode().split()

    def templates(self) -> list[int]:
        """The templates of the user that take runs."""
        return [note.pid for _, note in templates()]

    def ready(self) -> int:
        """The one template of the user, once it is there."""
        (found,) = wait_until(self.templates)
        return found

    def owner(self, run: str) -> int:
        """The process that has forked the template of a run."""
        return parent_of(int(self.words(run)[2]))


@pytest.fixture
def lab(rankdeck, work, write_script, write_profile, monkeypatch) -> Iterator[Lab]:
    monkeypatch.setenv("RANKDECK_TESTS_TORCH", "whole")  # supervisors that have imported the real torch would fork it
    lab = Lab(rankdeck, work, write_script, write_profile)
    yield lab
    (work / "hold").unlink(missing_ok=True)
    (lab.site / "wait").unlink(missing_ok=True)
    rankdeck.stop_everything()
    assert rankdeck("clean", "--template").returncode == 0
    wait_until(lambda: not rankdeck.processes(), what="nothing is left")
    assert [name for name in rankdeck.sockets() if name != "template-names"] == []


def test_launches_share_it_and_it_outlives_them(lab, rankdeck, work):
    (work / "hold").touch()
    first = lab.launch(env={"LR": "1"})
    second = lab.launch(env={"LR": "2"})
    template = lab.ready()
    assert lab.owner(first) == lab.owner(second) == template
    assert [lab.words(run)[3] for run in (first, second)] == ["1", "2"]
    assert lab.words(first)[2] != lab.words(second)[2], "each run has a template of its own"
    (work / "hold").unlink()
    assert [lab.finish(run) for run in (first, second)] == [0, 0]
    wait_until(lambda: [one.pid for one in rankdeck.processes()] == [template], what="it alone waits")
    third = lab.launch()
    assert lab.finish(third) == 0
    assert template in lab.templates()
    earlier = [event["earlier"] for event in rankdeck.journal(third) if event["event"] == "ModulesImported"]
    assert earlier == [True]
    assert f"template {template} " in rankdeck("ps").stdout
    assert rankdeck("clean", "--template").stdout == "ended 1 template\n"
    wait_gone(template)
    assert rankdeck("clean", "--template").stdout == "there is no template\n"
    assert "template" not in rankdeck("ps").stdout


def test_runs_wait_for_one_that_still_imports_torch(lab, rankdeck):
    (lab.site / "wait").touch()
    runs = [lab.launch(), lab.launch()]
    for run in runs:
        log = rankdeck.folder(run) / "nodes" / "localhost" / "template.log"
        wait_until(log.exists, what="its agent has asked for a template")
    assert len(rankdeck.of_role("user-template")) == 1
    assert rankdeck.of_role("template") == []
    (lab.site / "wait").unlink()
    assert [lab.finish(run) for run in runs] == [0, 0]
    for run in runs:
        assert [event["earlier"] for event in rankdeck.journal(run) if event["event"] == "ModulesImported"] == [False]


@pytest.mark.parametrize("env", [{"OMP_NUM_THREADS": "7"}, {"LD_LIBRARY_PATH": "/opt/nothing"}])
def test_what_is_read_when_a_process_starts_makes_another_one(lab, env):
    assert lab.finish(lab.launch()) == 0
    first = lab.templates()
    assert lab.finish(lab.launch(env=env)) == 0
    assert len(lab.templates()) == 2
    assert set(first) < set(lab.templates())


def test_a_variable_that_an_import_reads_is_never_old_and_makes_another_one_next_time(lab):
    first = lab.launch(env={"READ_AT_IMPORT": "1"})
    assert lab.words(first)[4] == "1"
    assert lab.finish(first) == 0
    old = lab.templates()
    for _ in range(3):
        run = lab.launch(env={"READ_AT_IMPORT": "2"})
        assert lab.words(run)[4] == "2"
        assert lab.finish(run) == 0
    (new,) = set(lab.templates()) - set(old)
    assert is_alive(new)


def test_an_environment_that_changed_makes_a_new_one(lab, rankdeck):
    assert lab.finish(lab.launch()) == 0
    (old,) = lab.templates()
    (lab.site / "torch" / "__init__.py").write_text(TORCH + "READ = 'newer'\n")
    (lab.site / "torch-2.9.dist-info").mkdir()
    for _ in range(2):
        run = lab.launch()
        assert lab.words(run)[4] == "newer"
        assert lab.finish(run) == 0
    wait_gone(old)
    assert len(lab.templates()) == 1


def test_a_module_that_stands_before_an_imported_one_is_not_ignored(lab, work, write_script):
    for folder in ("installed/site-packages", "mine"):
        write_script(f"{folder}/needed.py", f"WHERE = {folder!r}")
    (lab.site / "torch" / "__init__.py").write_text(TORCH + "import needed\nREAD = needed.WHERE\n")
    for path, where in (("", "installed/site-packages"), (str(work / "mine"), "mine")):
        run = lab.launch(env={"MORE_PATH": path})
        assert lab.words(run)[4] == where
        assert lab.finish(run) == 0
    assert len(lab.templates()) == 1


def test_a_module_of_the_profile_that_is_not_installed_is_imported_for_each_run(lab, work, write_script):
    env = {"MORE_PATH": str(work / "own")}
    for text in ("first", "another"):
        write_script("own/shared.py", f"import os, torch\nos.environ['LR'] = torch.READ = {text!r}")
        run = lab.launch(env=dict(env), preload=["shared"])
        assert lab.words(run)[3:] == [text, text]
        assert lab.finish(run) == 0
    assert len(lab.templates()) == 1


def test_a_folder_of_the_path_that_can_not_be_read_does_not_end_it(lab, work):
    (work / "loop").symlink_to("loop")
    for _ in range(2):
        assert lab.finish(lab.launch(env={"MORE_PATH": str(work / "loop")})) == 0
    lab.ready()


def test_limits_umask_and_cores_are_those_of_the_shell(lab, rankdeck, write_script, work):
    assert lab.finish(lab.launch()) == 0
    (template,) = lab.templates()
    write_script(
        "say.py",
        "import os, resource, torch\n"
        "print('up', os.getpid(), os.getppid(), resource.getrlimit(resource.RLIMIT_CORE)[0], oct(os.umask(0)), sorted(os.sched_getaffinity(0)), flush=True)\n",
    )
    core = min(os.sched_getaffinity(0))
    command = f"ulimit -S -c 7; umask 027; exec taskset -c {core} {' '.join(map(str, rankdeck.argv))} launch --detach {lab.profile()}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    run = done.stdout.strip()
    words = lab.words(run)
    assert words[3:] == [str(7 * 1024), "0o27", f"[{core}]"]
    assert lab.finish(run) == 0
    assert lab.templates() == [template]


@pytest.mark.parametrize("is_importing", [False, True])
def test_its_own_death_costs_no_run(lab, work, rankdeck, is_importing):
    hold, wait = work / "hold", lab.site / "wait"
    (wait if is_importing else hold).touch()
    run = lab.launch("fail")
    if not is_importing:
        lab.words(run)
    else:
        wait_until((rankdeck.folder(run) / "nodes" / "localhost" / "template.log").exists)
    old = lab.ready()
    kill_hard(old)
    (wait if is_importing else hold).unlink()
    assert lab.finish(run) == 3
    assert lab.finish(lab.launch()) == 0
    assert lab.ready() != old


def test_a_stopped_one_does_not_keep_a_run(lab):
    assert lab.finish(lab.launch()) == 0
    (template,) = lab.templates()
    os.kill(template, signal.SIGSTOP)
    assert lab.finish(lab.launch()) == 0
    wait_gone(template)


def test_how_ranks_end_is_known_although_their_template_was_killed(lab, work, rankdeck):
    (work / "hold").touch()
    run = lab.launch(on_failure="hold")
    ranks = [int(lab.words(run, rank)[1]) for rank in range(2)]
    assert ranks == rankdeck.pids(run), "the template has told of both"
    kill_hard(parent_of(ranks[0]))
    wait_until(lambda: parent_of(ranks[0]) == lab.ready(), what="the template of the user has the ranks")
    os.kill(ranks[1], signal.SIGUSR1)
    rankdeck.wait_status(run, lambda now: now["ranks"][1]["exit"] == -signal.SIGUSR1)
    (work / "hold").unlink()
    rankdeck.wait_status(run, lambda now: now["ranks"][0]["exit"] == 0)


def test_how_ranks_end_is_known_although_their_agent_and_warden_were_killed(lab, work, rankdeck):
    (work / "hold").touch()
    run = lab.launch(on_failure="hold")
    ranks, agent = [int(lab.words(run, rank)[1]) for rank in range(2)], rankdeck.agent(run)
    assert ranks == rankdeck.pids(run), "the agent knows both"
    kill_hard(parent_of(agent))
    kill_hard(agent)
    os.kill(ranks[1], signal.SIGUSR1)
    rankdeck.wait_status(run, lambda now: now["ranks"][1]["exit"] == -signal.SIGUSR1)
    assert is_alive(ranks[0])
    (work / "hold").unlink()
    rankdeck.wait_status(run, lambda now: now["ranks"][0]["exit"] == 0)
    rankdeck("restart", run)
    assert lab.finish(run) in (0, 3)


def test_what_ranks_have_started_ends_with_their_run(lab, rankdeck, write_script, work):
    write_script(
        "say.py",
        "import os, subprocess\n"
        "subprocess.run(['sh', '-c', 'env -i setsid sleep 600 & echo $! > orphan.$RANK'])\n"
        "print('up', flush=True)\n",
    )
    run = lab.launch()
    assert lab.finish(run) == 0
    for rank in range(2):
        wait_gone(int(Path(f"orphan.{rank}").read_text()))


def test_every_process_of_a_run_has_its_mark(lab, work, rankdeck):
    (work / "hold").touch()
    run = lab.launch()
    rank, template = map(int, lab.words(run)[1:3])
    marks = [
        re.findall(f"{MARK}=([^\0]*)\0+".encode(), Path(f"/proc/{pid}/environ").read_bytes())
        for pid in (rank, template)
    ]
    assert marks[0] == marks[1]
    assert marks[0][0].startswith(run.encode())


@pytest.mark.parametrize("words", [("--cold",), ("--set", "launch.linger=off"), ("--set", "launch.warm=false")])
def test_a_launch_may_do_without(lab, rankdeck, words):
    assert rankdeck("launch", lab.profile(), *words).returncode == 0
    wait_until(lambda: not rankdeck.processes())


def test_it_ends_by_itself_after_its_idle_time(lab, rankdeck):
    assert lab.finish(lab.launch(linger=1)) == 0
    wait_until(lambda: not rankdeck.processes())


def test_it_forks_for_its_user_only(lab, rankdeck, needs_root):
    assert lab.finish(lab.launch()) == 0
    (path,) = (Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck").glob("template-*/socket")
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        folder.chmod(0o755)
    path.chmod(0o777)
    code = (
        "import os, socket, sys\nos.setuid(65534)\nwire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "wire.connect(sys.argv[1])\nprint(wire.recv(100))"
    )
    done = subprocess.run(["python3", "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "b''\n", done.stderr
    for folder in (path.parent.parent, path.parent):
        folder.chmod(0o700)
