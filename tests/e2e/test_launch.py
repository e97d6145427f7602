"""`rankdeck launch`: what it prints, what it ends with, and Ctrl-C. Real ranks without torch."""

import fcntl
import json
import os
import re
import signal
import socket
import sys
import termios
from pathlib import Path

import pexpect
import pytest

from tests.pty_command import ended, pty
from tests.support import (
    COMMAND,
    LIGHT,
    PATIENCE,
    ROOT,
    check_err,
    check_out,
    entries,
    from_table,
    wait_gone,
    wait_until,
)

HELLO = "import os; print('hello from', os.environ['RANK'])"
FOR_EVER = "import signal; print('up', flush=True)\nwhile True: signal.pause()"
QUICK = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}


def fail_in_rank(rank: int, how: str) -> str:
    """One rank ends like this once all others are up; the others stay."""
    return (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "signal.signal(signal.SIGTERM, lambda n, f: os._exit(99))\n"
        "Path(f'up-{rank}').touch()\n"
        f"if rank == {rank}:\n"
        "    while len(list(Path('.').glob('up-*'))) < world: time.sleep(0.01)\n"
        f"    {how}\n"
        "while True: signal.pause()\n"
    )


def has_read(terminal: pexpect.spawn) -> bool:
    """Whether a command has read all lines that were typed."""
    typed = os.open(f"/proc/{terminal.pid}/fd/0", os.O_RDONLY | os.O_NOCTTY)
    try:
        return fcntl.ioctl(typed, termios.FIONREAD, bytes(4)) == bytes(4)
    finally:
        os.close(typed)


# --- following


def test_launch_prints_the_run_id_first_and_then_every_line_with_its_rank(rankdeck, write_profile):
    done = rankdeck("launch", write_profile(HELLO, ranks=2))
    assert done.returncode == 0
    run, *lines = done.stdout.splitlines()
    assert re.fullmatch(r"job-[a-z2-9]{4}", run)
    assert sorted(lines) == ["[r0 localhost] hello from 0", "[r1 localhost] hello from 1"]
    assert f"{run} succeeded" in done.stderr


def test_launch_keeps_stdout_and_stderr_apart(rankdeck, write_profile):
    done = rankdeck("launch", write_profile("import sys; print('to out'); print('to err', file=sys.stderr)"))
    assert "[r0 localhost] to out\n" in done.stdout
    assert "[r0 localhost] to err\n" in done.stderr
    assert "to err" not in done.stdout


def test_lines_are_printed_in_the_order_of_their_rank_and_none_is_missing(rankdeck, write_profile):
    done = rankdeck("launch", write_profile("import os\nfor n in range(20000): print(os.environ['RANK'], n)", ranks=3))
    for rank in range(3):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[r{rank} localhost] ")]
        assert mine == [f"[r{rank} localhost] {rank} {n}" for n in range(20000)]


def test_a_launch_in_a_folder_with_a_hostile_name_works(rankdeck, weird_folder, write_profile, monkeypatch):
    """Spaces, quotes, a line feed, `$(…)`: in the home, the working directory, the script's path and its arguments."""
    home = weird_folder / "ho'me"
    monkeypatch.setenv("RANKDECK_HOME", str(home))
    monkeypatch.chdir(weird_folder)
    script = weird_folder / "my scr'ipt\n.py"
    script.write_text(
        "import os, sys; print(repr(os.getcwd())); print(repr(sys.argv)); import rankdeck; rankdeck.log(step=3)"
    )
    profile = write_profile({"script": script.name, "args": [str(weird_folder)]}, ranks=2)
    done = rankdeck("launch", profile, env={"RANKDECK_HOME": str(home)})
    check_out(done, 0, f"[r1 localhost] {str(weird_folder)!r}\n")
    assert f"[r1 localhost] {[str(script), str(weird_folder)]!r}\n" in done.stdout
    status = json.loads(rankdeck("status", "-", "--json").stdout)
    assert [rank["step"] for rank in status["ranks"]] == [3, 3]
    assert not list(weird_folder.glob("pwned*"))
    assert rankdeck("clean", "--yes").returncode == 0


def test_a_launch_in_a_folder_whose_name_is_not_utf_8_works(rankdeck, write_profile, work, monkeypatch):
    folder = Path(os.fsdecode(os.fsencode(work) + b"/a\xff"))
    folder.mkdir()
    (folder / "helper.py").write_text("import os\ndef here(): return os.fsencode(os.getcwd()).hex()\n")
    (folder / "main.py").write_text("import helper; print(helper.here())\n")
    profile = write_profile({"script": "main.py"})
    monkeypatch.chdir(folder)
    check_out(rankdeck("launch", profile), 0, f"[r0 localhost] {os.fsencode(folder).hex()}\n")
    assert rankdeck("plan", profile, "--json").returncode == 0


def test_the_longest_profile_name_can_be_launched(rankdeck, write_profile):
    """The path of a unix socket has 107 bytes at most, and the run's id is part of it."""
    profile = write_profile(HELLO, name="n" * 64)
    done = rankdeck("launch", profile)
    assert done.returncode == 0, done.stderr


def test_a_runtime_folder_that_is_too_deep_for_sockets_is_no_traceback(rankdeck, write_profile, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    done = rankdeck("launch", write_profile(HELLO), env={"XDG_RUNTIME_DIR": str(deep)})
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3)


# --- exit statuses


@pytest.mark.parametrize("on_failure", ["stop", "hold"])
def test_exit_status_is_that_of_the_rank_that_failed_first(rankdeck, write_profile, on_failure):
    """The others end with 99 when they are stopped, which is a consequence. Nobody is there to hold for."""
    profile = write_profile(fail_in_rank(1, "sys.exit(7)"), ranks=3, launch={"on_failure": on_failure, **QUICK})
    check_err(rankdeck("launch", profile), 7, "rank 1")


def test_the_first_failure_decides_although_a_lower_rank_fails_later(rankdeck, work, launch):
    script = (
        "import os, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "while rank == 0 and not os.path.exists('go'): time.sleep(0.01)\n"
        "sys.exit([9, 0, 5][rank])"
    )
    run = launch(script, ranks=3)
    rankdeck.wait_state(run, "holding")
    (work / "go").touch()
    rankdeck.wait_status(run, lambda status: status["ranks"][0]["exit"] == 9)
    assert rankdeck("wait", run).returncode == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_exit_status_is_128_and_the_signal_for_a_rank_that_a_signal_ended(rankdeck, write_profile, number):
    how = f"os.kill(os.getpid(), {int(number)})"
    profile = write_profile(fail_in_rank(0, how), ranks=2, launch={"on_failure": "stop", **QUICK})
    done = rankdeck("launch", profile)
    assert done.returncode == 128 + number
    assert number.name in done.stderr


@pytest.mark.parametrize(
    "words",
    [["lunch"], ["launch"], ["launch", "job", "--no-such"], ["launch", "no-such-profile"], ["launch", "./none.toml"],
     ["launch", "smoke", "--set", "backend.name=glooo"], ["launch", "smoke", "--set", "layout.ranks_per_nod=4"],
     ["status"], ["status", "no-such-run"], ["kill", "-"], ["wait", "-", "--timeout", "soon"], ["completion", "tcsh"]],
    ids=" ".join,
)  # fmt: skip
def test_exit_status_is_2_for_a_word_that_is_wrong(rankdeck, words):
    done = rankdeck(*words)
    assert done.returncode == 2
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@from_table
def test_exit_status_is_3_when_a_check_fails_and_nothing_was_started(
    sections, said, rankdeck, write_script, write_profile
):
    more = dict(sections)
    recipe = {"script": str(write_script("hello.py", HELLO)), **more.pop("recipe", {})}
    done = rankdeck("launch", write_profile(recipe, **more))
    check_err(done, 3, said)
    assert done.stdout == ""
    assert not (rankdeck.home / "runs").exists()


def test_wait_gives_up_with_124(rankdeck, launch):
    run = launch(FOR_EVER)
    done = rankdeck("wait", run, "--timeout", "0.2")
    assert done.returncode == 124
    assert rankdeck.status(run)["state"] in ("starting", "running")


def test_wait_ends_with_the_status_of_the_run(rankdeck, launch):
    run = launch(fail_in_rank(1, "sys.exit(7)"), ranks=2, launch={"on_failure": "stop", **QUICK})
    done = rankdeck("wait", run, "--json")
    assert done.returncode == 7
    assert json.loads(done.stdout) == {"run": run, "state": "failed", "exit": 7}
    assert rankdeck("wait", run).returncode == 7
    assert [rank["state"] for rank in rankdeck.status(run)["ranks"]] == ["stopped", "failed"]


SLOW_TO_END = entries("e2e/launch", "slow_to_end")


def test_stop_returns_when_the_run_has_ended_or_at_once_if_asked(rankdeck, work, launch):
    ladder = {"stop_ladder": [["SIGINT", 600], ["SIGKILL", 5]]}
    run = launch(SLOW_TO_END, launch=ladder, says=b"up")
    assert rankdeck("stop", run, "--no-wait").returncode == 0
    wait_until((work / "asked").exists)
    assert rankdeck.status(run)["state"] == "running", "it has not waited"
    with rankdeck.start("stop", run) as stopping:
        (work / "finish").touch()
        assert stopping.wait(PATIENCE) == 0
    done = rankdeck("wait", run, "--json")
    assert (done.returncode != 0, json.loads(done.stdout)["state"]) == (True, "stopped")
    check_out(rankdeck("stop", run), 0, "ended already")


# --- detached


def test_detach_json_is_an_object_with_the_run_and_nothing_else(rankdeck, write_profile):
    done = rankdeck("launch", write_profile(HELLO), "--detach", "--json")
    data = json.loads(done.stdout)
    assert list(data) == ["run"]
    assert done.stdout.count("\n") == 1
    assert (rankdeck.folder(data["run"]) / "journal.jsonl").exists()
    rankdeck("wait", data["run"])


def test_supervisor_and_ranks_are_in_no_session_of_the_terminal(rankdeck, launch):
    run = launch(FOR_EVER, ranks=2)
    status = rankdeck.wait_state(run, "running")
    pids = [rankdeck.supervisor(run), rankdeck.agent(run), *[rank["pid"] for rank in status["ranks"]]]
    assert os.getsid(0) not in [os.getsid(pid) for pid in pids]
    assert len({os.getsid(rank["pid"]) for rank in status["ranks"]}) == 2


def test_attach_without_a_terminal_follows_from_the_beginning_and_ends_with_the_run(rankdeck, work, launch):
    run = launch(
        "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('last')",
        says=b"first",
    )
    with rankdeck.start("attach", run) as attached:
        assert attached.stdout.readline() == "[r0 localhost] first\n"
        (work / "go").touch()
        assert attached.stdout.readline() == "[r0 localhost] last\n"
        assert attached.wait(timeout=PATIENCE) == 0


def test_the_store_of_a_run_on_one_machine_listens_on_the_loopback_address_only(rankdeck, launch):
    script = "import os, time\nprint('port', os.environ['MASTER_PORT'], flush=True)\nwhile True: time.sleep(0.1)"
    run = launch(script)
    port = int(rankdeck.wait_log(run, 0, b"port").split()[1])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=PATIENCE)


NO_LOCKS = entries("e2e/launch", "no_locks")  # a sitecustomize for a file system without flock


def test_a_launch_on_a_file_system_without_locks_says_so(rankdeck, write_profile, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(NO_LOCKS.format(light=str(LIGHT / "sitecustomize.py")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{LIGHT}")
    done = rankdeck("launch", write_profile("print('hello')"))
    assert done.returncode == 1
    assert "does not support file locks (flock): Operation not supported" in done.stderr
    assert "set RANKDECK_HOME to a folder on another file system" in done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


# --- Ctrl-C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_without_a_terminal_stops_the_run(rankdeck, write_profile, number):
    profile = write_profile(FOR_EVER, launch=QUICK)
    with rankdeck.start("launch", profile) as following:
        run = following.stdout.readline().strip()
        assert following.stdout.readline() == "[r0 localhost] up\n"
        following.send_signal(number)
        assert following.wait(timeout=PATIENCE) == 128 + number
    assert rankdeck.status(run)["state"] == "stopped"


DIES = entries("e2e/launch", "dies")  # a sitecustomize with which each supervisor dies soon after it has started


def test_a_launch_whose_supervisors_die_again_and_again_obeys_sigterm(rankdeck, write_profile, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(DIES.format(light=str(LIGHT / "sitecustomize.py"), product=str(ROOT)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{LIGHT}")
    with rankdeck.start("launch", write_profile(FOR_EVER, launch=QUICK)) as following:
        run = following.stdout.readline().strip()
        supervisor = rankdeck.supervisor(run)
        wait_gone(supervisor)
        following.send_signal(signal.SIGTERM)
        # The last one: it came before the command listened to it.
        assert following.wait(timeout=PATIENCE) in (1, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert rankdeck("stop", run, "--now").returncode == 0
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_an_interrupt_of_attach_leaves_the_run_alone(rankdeck, launch):
    run = launch(FOR_EVER)
    with rankdeck.start("attach", run) as attached:
        assert attached.stdout.readline() == "[r0 localhost] up\n"
        attached.send_signal(signal.SIGINT)
        assert attached.wait(timeout=PATIENCE) == 0
        assert f"rankdeck attach {run}" in attached.stderr.read()
    rankdeck.wait_state(run, "running")


@pytest.fixture
def following(rankdeck, write_profile):
    """A launch that is followed in a terminal, whose rank is up."""
    terminal = pty("launch", write_profile(FOR_EVER, launch=QUICK))
    terminal.expect("up\r\n")
    yield terminal
    terminal.kill(signal.SIGKILL)
    terminal.wait()
    terminal.close()


def test_ctrl_c_in_a_terminal_asks_and_d_detaches(rankdeck, following):
    following.sendintr()
    following.expect("detach")
    following.sendline("d")
    following.expect("rankdeck attach job-")
    assert ended(following) == 0
    rankdeck.wait_state("-", "running")


TALKS = entries("e2e/launch", "talks")


def test_no_output_comes_between_ctrl_c_s_question_and_its_answer(rankdeck, write_profile):
    terminal = pty("launch", write_profile(TALKS, launch=QUICK))
    try:
        terminal.expect_exact("line 3.")
        terminal.sendintr()
        terminal.expect_exact("continue [Enter] ")
        shown = int(["3", *re.findall(r"line (\d+)\.", terminal.before)][-1])
        rankdeck.wait_log(rankdeck.status()["run"], 0, f"line {shown + 50}.".encode())
        terminal.sendline("")
        terminal.expect_exact(f"line {shown + 30}.")
        lines = terminal.before.split("\r\n")
        assert lines[0] == ""  # the echo of Enter
        assert lines[1:-1] == [f"[r0 localhost] line {number}." for number in range(shown + 1, shown + 30)]
        terminal.sendintr()
        terminal.expect_exact("continue [Enter] ")
        terminal.sendline("s")
        terminal.expect("stopped")
        assert ended(terminal) == 130
    finally:
        terminal.kill(signal.SIGKILL)
        terminal.wait()
        terminal.close()


def test_a_question_of_ctrl_c_ends_with_the_run(rankdeck, following):
    following.sendintr()
    following.expect_exact("continue [Enter] ")
    rankdeck("stop", "-")
    following.expect("stopped")
    assert "\r\n" in following.before
    ended(following)


@pytest.mark.parametrize("answer", ["s\n", "\x03"])
def test_ctrl_c_in_a_terminal_asks_and_s_or_a_second_one_stops(rankdeck, following, answer):
    following.sendintr()
    following.expect("stop the run")
    following.send(answer)
    following.expect("stopped")
    assert ended(following) == 130
    assert rankdeck.status()["state"] == "stopped"


def test_enter_after_ctrl_c_goes_on_following(rankdeck, following):
    following.sendintr()
    following.expect("detach")
    following.expect_exact("[Enter] ")
    following.sendline("")
    following.expect_exact("\r\n")  # its echo
    wait_until(lambda: has_read(following))
    rankdeck.wait_state("-", "running")
    following.sendintr()
    following.expect("detach")
    following.sendline("s")
    following.expect("stopped")
    ended(following)


def test_what_ranks_print_can_not_write_to_the_terminal(rankdeck, write_profile):
    """A rank that clears the screen or sets the window's title must not do so in the user's terminal."""
    terminal = pty("launch", write_profile(r"print('\x1b[2J\x1b]0;pwned\x07\x1b[31mred\x1b[0m \x9b5n text')"))
    terminal.expect(pexpect.EOF)
    assert "text" in terminal.before
    assert "\x1b[2J" not in terminal.before
    assert "\x1b]" not in terminal.before
    assert "\x9b" not in terminal.before


# --- the console script


def test_the_console_script_is_the_same_command(rankdeck):
    script = Path(sys.executable).with_name("rankdeck")
    if not script.exists():
        pytest.skip("rankdeck is not installed here")
    rankdeck.argv = [str(script)]
    installed = rankdeck("--version")
    rankdeck.argv = COMMAND
    assert installed.stdout == rankdeck("--version").stdout != ""


def test_rankdeck_without_a_terminal_says_what_to_do(rankdeck):
    check_err(rankdeck(), 2, "--help")


# --- several at once


def test_eight_launches_at_once_all_succeed(rankdeck, write_profile):
    profile = write_profile(HELLO, ranks=2)
    started = [rankdeck.start("launch", profile, "--detach") for _ in range(8)]
    runs = []
    for one in started:
        with one:
            out, err = one.communicate(timeout=PATIENCE)
            assert one.returncode == 0, err
            runs.append(out.strip())
    assert len(set(runs)) == 8
    assert [rankdeck("wait", run).returncode for run in runs] == [0] * 8
    wait_until(lambda: rankdeck.processes() == [])


def test_a_rank_whose_terminal_line_never_ends_is_followed_to_its_end(rankdeck, write_profile):
    done = rankdeck(
        "launch", write_profile(r"for n in range(1000): print(f'\r{n}%', end='')" + "\nprint(end='the end')")
    )
    assert "999%the end\n" in done.stdout


def test_the_working_tree_is_not_needed_in_the_folder_of_a_launch(rankdeck, write_profile):
    """Nothing of rankdeck's is found by way of the current folder."""
    done = rankdeck("launch", write_profile("import rankdeck; print(rankdeck.__file__)"))
    assert f"{rankdeck.home}/library/" in done.stdout
    assert str(ROOT / "rankdeck") not in done.stdout
    wait_gone(*[process.pid for process in rankdeck.processes()])


def test_more_ranks_than_a_node_has_room_for_are_refused_before_any_starts(rankdeck, write_script, launch):
    script = write_script("touch.py", "import os, pathlib; pathlib.Path('started-' + os.environ['RANK']).touch()")
    run = launch(script, ranks=8, launch={"setup": "ulimit -n 79", "python": sys.executable})
    rankdeck.wait_state(run, "failed")
    assert "room for 5 ranks, not 8: at most 79 open files" in rankdeck("status", run).stdout
    assert not list(script.parent.glob("started-*"))
    wait_until(lambda: not rankdeck.processes())


def test_the_soft_limit_of_open_files_is_raised_on_a_node(rankdeck, launch):
    run = launch(
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)",
        launch={"setup": "ulimit -Sn 256; ulimit -Hn 4096", "python": sys.executable},
    )
    rankdeck.wait_state(run, "succeeded")
    assert rankdeck.log(run, 0) == b"(4096, 4096)\n"


def test_words_before_a_rank_are_run_with_its_numbers(rankdeck, write_profile):
    profile = write_profile(
        "import os; print(os.environ['WRAPPED'])", 2, rank={"wrap": ["env", "WRAPPED={run}/rank{rank}"]}
    )
    assert rankdeck("launch", profile).returncode == 0
    run = next((rankdeck.home / "runs").glob("job-*"))
    assert [rankdeck.log(run.name, rank) for rank in range(2)] == [
        b"%s/rank%d\n" % (bytes(run), rank) for rank in range(2)
    ]
