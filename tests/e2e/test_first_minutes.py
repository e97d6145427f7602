"""What somebody meets who starts a script for the first time: a failure, its cause, a question, a pipe."""

import os
import signal
import subprocess
import sysconfig
import venv
from pathlib import Path

import pexpect
import pytest

from tests.conftest import WriteScript
from tests.pty_command import ended, in_terminal
from tests.support import COMMAND, PATIENCE, check_err, entries, wait_until

RAISES = entries("e2e/first_minutes", "raises")
PLACE = 6  # the line that raises
LADDER = "launch.stop_ladder=[['SIGTERM', 5], ['SIGKILL', 5]]"
HOLD = ("--set", "launch.on_failure=hold")


@pytest.fixture
def raises(write_script: WriteScript) -> Path:
    """Rank 1 raises once rank 0 is up."""
    return write_script("raises.py", RAISES)


def test_a_crash_under_run_ends_with_its_cause_and_the_prompt(rankdeck, raises):
    with in_terminal("run", "--cold", "-n", "2", "--set", LADDER, raises) as terminal:
        assert ended(terminal) == 1
    last = terminal.before.replace("\r", "").rstrip().splitlines()[-6:]
    run = rankdeck.status()["run"]
    assert last[:4] == [
        f"rankdeck: {run} failed: rank 1 exit 1",
        "  rank 1 raised ValueError",
        "  ValueError: a bad rate",
        f"  {raises}:{PLACE}",
    ]
    assert last[-1].startswith(f"  rankdeck restart {run}: ")
    assert rankdeck.status()["state"] == "failed"
    found = rankdeck("logs", "-", "--grep", "Error")  # in what a rank wrote to stderr
    assert (found.stdout.splitlines()[-1], found.stderr) == ("[r1 localhost] ValueError: a bad rate", "")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_a_run_that_holds_asks_at_once_while_another_rank_lives(rankdeck, raises, tmp_path, monkeypatch):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "$@" > edited\n')
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    question = f"r restart · e edit raises.py:{PLACE} · q quit [q] "
    with in_terminal("run", "--cold", "-n", "2", "--set", LADDER, *HOLD, raises) as terminal:
        terminal.expect_exact(question)
        assert rankdeck.status()["ranks"][0]["state"] == "running"
        terminal.sendline("e")
        terminal.expect_exact(question)
        assert Path("edited").read_text().split()[-1] == str(raises)
        terminal.sendline("r")
        terminal.expect_exact(question)
        assert rankdeck.status()["attempt"] == 1
        terminal.sendline("")
        assert ended(terminal) == 1
    assert rankdeck.status()["state"] == "failed"
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_the_question_goes_when_somebody_else_answers_it(rankdeck, raises):
    with in_terminal("run", "--cold", "-n", "2", "--set", LADDER, *HOLD, raises) as terminal:
        terminal.expect_exact("q quit [q] ")
        assert rankdeck("restart", "-").returncode == 0
        terminal.expect_exact("q quit [q] ")
        terminal.sendintr()
        assert ended(terminal) == 1


def test_without_a_terminal_the_others_are_stopped_and_the_run_has_failed(rankdeck, raises):
    done = rankdeck("run", "--cold", "-n", "2", "--set", LADDER, *HOLD, raises)
    assert done.returncode == 1
    run = rankdeck.status()["run"]
    assert rankdeck.status()["state"] == "failed"
    assert " failed " in rankdeck("ps", "--all").stdout
    assert " failed " in rankdeck("runs").stdout
    assert done.stderr.splitlines()[-1].startswith(f"  rankdeck restart {run}: ")
    assert "asked for the run to stop" not in "".join(done.stderr.splitlines()[-6:])


@pytest.mark.parametrize("policy", [(), HOLD], ids=["stop", "hold"])
def test_a_reader_that_leaves_the_pipe_leaves_no_run_behind(rankdeck, write_script, policy):
    endless = write_script("talk.py", "import time\nwhile True: print('line', flush=True); time.sleep(0.02)")
    with rankdeck.start("run", "--cold", "-n", "2", "--set", LADDER, *policy, endless) as following:
        following.stdout.readline()
        following.stdout.close()
        assert following.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE
    assert rankdeck.status()["state"] == "stopped"
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_in_the_background_of_a_shell_nothing_waits_for_an_answer(rankdeck, raises):
    """A process in the background that reads from its terminal is stopped by the kernel."""
    shell = pexpect.spawn("/bin/bash", ["--norc", "-i"], encoding="utf-8", timeout=PATIENCE, env=os.environ)
    try:
        words = " ".join([*COMMAND, "run", "--cold", "-n", "2", "--set", f'"{LADDER}"', *HOLD, str(raises)])
        shell.sendline(f"{words} & wait $!; echo ended with $?.")
        shell.expect_exact("ended with 1.")
    finally:
        shell.close(force=True)
    assert rankdeck.status()["state"] == "failed"


UP = "import signal; print('up', flush=True)\nwhile True: signal.pause()"


def test_of_several_runs_of_a_name_the_active_one_is_meant(rankdeck, write_script):
    for _ in range(2):
        assert rankdeck("run", "--cold", "-n", "1", write_script("light.py", "print('done')")).returncode == 0
    script = write_script("light.py", UP)
    active = rankdeck("run", "--cold", "--detach", "-n", "1", script, "--lr", "0.1").stdout.strip()
    said = rankdeck("status", "light").stdout.splitlines()
    assert said[0].startswith(f"{active}  ")
    assert said[1] == f"{script} --lr 0.1"
    assert rankdeck("stop", "light").returncode == 0
    assert rankdeck("status", "light").returncode == 2, "now none is active, and three have the name"


def test_a_silence_is_explained(rankdeck, write_script):
    silent = write_script("silent.py", "import signal\nwhile True: signal.pause()")
    with rankdeck.start("run", "--cold", "-n", "1", silent) as following:
        assert any(line == "rankdeck: 1 rank started, and no output yet\n" for line in following.stderr)
        following.terminate()


ODD = entries("e2e/first_minutes", "odd")


@pytest.mark.parametrize("surroundings", ODD)
def test_a_run_works_in_odd_surroundings(rankdeck, write_script, tmp_path, surroundings):
    before, said = ODD[surroundings]
    script = write_script("group.py", "import os; open('done', 'w').write(os.environ['GLOO_SOCKET_IFNAME'])")
    command = [*COMMAND, "run", "--cold", "-n", "1", str(script)]
    words = ["/bin/sh", "-c", f'{before}; exec "$@"', "sh", *command]
    new_home = tmp_path / "new" / "home"  # folders of which nothing is there yet
    environment = {**os.environ, "RANKDECK_HOME": str(new_home)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    check_err(done, 0, said)
    assert Path("done").read_text() == "lo"


def test_a_folder_that_was_removed_is_named(rankdeck, tmp_path):
    words = ["/bin/sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *COMMAND, "run", "--cold", "-n", "1", "train.py"]
    (tmp_path / "gone").mkdir()
    done = subprocess.run(words, cwd=tmp_path / "gone", capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "rankdeck: the current folder was removed\n  change to another one: cd\n",
    )


@pytest.mark.parametrize("is_executable", [True, False])
def test_a_shell_script_runs_as_itself(rankdeck, write_script, is_executable):
    script = write_script("train.sh", '#!/bin/bash\n[[ $RANK == 0 ]] && echo "rank $RANK got $1" > said')
    script.chmod(0o755 if is_executable else 0o644)
    assert rankdeck("run", "--cold", "-n", "1", script, "--lr=1").returncode == 0
    assert Path("said").read_text() == "rank 0 got --lr=1\n"


ASKS = entries("e2e/first_minutes", "asks")


def test_a_rank_can_be_asked_and_debugged_in_a_terminal(rankdeck, write_script):
    with in_terminal("run", "--cold", "-n", "1", "--stdin", write_script("asks.py", ASKS)) as terminal:
        terminal.expect_exact("name? ")
        terminal.sendline("ann")
        terminal.expect_exact("hello ann")
        terminal.expect_exact("(Pdb) ")
        terminal.sendline("p len(name) + 39")
        terminal.expect_exact("42")
        terminal.sendintr()
        terminal.expect_exact("continue [Enter] ")
        terminal.sendline("")
        terminal.sendline("c")
        terminal.expect_exact("after")
        assert ended(terminal) == 0


@pytest.mark.parametrize(("given", "status"), [("ann\nc\n", 0), ("", 1)])
def test_a_pipe_goes_to_the_rank_and_so_does_its_end(rankdeck, write_script, given, status):
    words = [*COMMAND, "run", "--cold", "-n", "1", "--stdin", str(write_script("asks.py", ASKS))]
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    assert ("after" in done.stdout, "EOFError" in done.stderr) == (status == 0, status == 1)


def test_stdin_is_for_one_rank(rankdeck, write_script):
    done = rankdeck("run", "-n", "2", "--stdin", write_script("asks.py", ASKS))
    assert (done.returncode, "one rank" in done.stderr) == (2, True)


def test_the_python_that_the_user_means_runs_and_is_named(rankdeck, write_script, tmp_path, monkeypatch):
    """It has torch by a `.pth` file, as an environment with the system's packages has it."""
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (packages / "site.pth").write_text(f"{sysconfig.get_path('purelib')}\n{tmp_path / 'shared'}\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "of_site.py").touch()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("PATH", f"{tmp_path}/env/bin:{os.environ['PATH']}")
    python = f"{tmp_path}/env/bin/python"
    script = write_script("needs.py", "import of_site\nprint('has it', flush=True)\nimport tqdm_of_ours\n")
    with in_terminal("run", "--cold", "-n", "1", script) as terminal:
        terminal.expect_exact(f"needs launched 1 rank of {python}")
        terminal.expect_exact("has it")
        assert ended(terminal) == 1
    assert f"install tqdm_of_ours for {python}" in rankdeck("status", "-").stdout
