"""A command arrives on a node as it was meant, whatever shell the user has there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.failures.ssh import EXIT_SETUP_FAILED
from engine.core.plan.plan import Reach
from engine.launchers import LAUNCHERS, local, ssh
from engine.launchers.setup import setup_input
from engine.supervisor.nodes.bridge import boot_command
from tests.support import entries, from_table

SHELLS = [shell for shell in ("bash", "dash", "zsh", "tcsh", "fish", "ksh", "mksh", "busybox") if shutil.which(shell)]
"""Login shells that are here, of those that people have."""

SEEN = "import json, os, sys; print(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]])); print(input())"
SHOW = [sys.executable, "-S", "-E", "-c", SEEN]  # prints its arguments, and one line of its standard input

WORDS = [*entries("unit/ssh_argv", "words"), "\udcff not UTF-8", *map(chr, range(1, 256))]


def lie_in(shell: str, line: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """What sshd does with the line that ssh sends."""
    words = [shell, "sh"] if shell == "busybox" else [shell]
    return subprocess.run(
        [*words, "-c", line], input=stdin, capture_output=True, env={**os.environ, **env}, timeout=60, check=False
    )


def words_seen(done: subprocess.CompletedProcess[bytes]) -> tuple[list[str], str]:
    """The arguments that arrived, and the line of standard input."""
    assert done.returncode == 0, done.stderr
    words, line = done.stdout.decode().splitlines()
    return [os.fsdecode(bytes.fromhex(word)) for word in json.loads(words)], line


@pytest.fixture
def user_home(tmp_path: Path) -> Path:
    folder = tmp_path / "home of it's user"
    folder.mkdir()
    return folder


# --- the words that ssh gets -----------------------------------------------------------------------------------------


def test_the_command_line_of_ssh():
    reach = Reach(ssh_options=("-p", "2222", "-o", "ConnectTimeout=60"))
    assert ssh.argv("ann@gpu01", ["~/venv/bin/python", "-I", "-c", "import os;print(1)", "20"], reach) == entries(
        "unit/ssh_argv", "the_command_line_of_ssh"
    )


def test_the_boot_command_needs_no_decoding():
    (line,) = ssh.argv("gpu01", boot_command("python3"), Reach())[-1:]
    assert line.startswith("exec python3 -I -S -c 'import ")
    (line,) = ssh.argv("gpu01", boot_command("python3"), Reach(setup="module load cuda"))[-1:]
    assert line.startswith("exec sh -c 'exec bash -lc ")
    assert " setup python3 -I -S -c 'import " in line


@pytest.mark.parametrize("name", LAUNCHERS)
def test_setup_lines_are_in_no_command_line(name):
    reach = Reach(setup="export HF_TOKEN=hf_swordfish")
    assert "swordfish" not in " ".join(LAUNCHERS[name]("gpu01", boot_command("python3"), reach))
    assert b"swordfish" in setup_input(reach.setup)


def test_both_launchers_are_known():
    assert (LAUNCHERS["local"], LAUNCHERS["ssh"]) == (local.argv, ssh.argv)


@pytest.mark.parametrize("node", ["gpu01", "gpu-01.cluster.example", "ann@gpu01", "10.0.0.7", "fe80::1", "::1", "a_b"])
def test_nodes_that_ssh_is_asked_for(node):
    assert ssh.argv(node, ["true"], Reach())[-3:] == ["--", node, "exec true"]


@from_table
def test_what_can_not_be_a_node_never_reaches_ssh(node):
    with pytest.raises(ValueError, match="is not a valid node name"):
        ssh.argv(node, ["true"], Reach())


@from_table
def test_a_word_with_a_nul_byte_is_refused(command, setup):
    with pytest.raises(ValueError, match="NUL"):
        ssh.argv("gpu01", command, Reach(setup=setup))


def effective(*options: str, config: Path | str = os.devnull) -> dict[str, str]:
    """What ssh makes of the options."""
    argv = ssh.argv("gpu01", ["true"], Reach(ssh_options=("-G", "-F", str(config), *options)))
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
def test_ssh_takes_the_options_of_the_user_before_ours_and_ours_before_the_configuration(tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "Host *\n BatchMode no\n LocalForward 8888 localhost:8888\n RequestTTY force\n ForwardX11 yes\n LogLevel QUIET\n"
        " ControlMaster auto\n ControlPath /tmp/none\n ForwardAgent yes\n StrictHostKeyChecking accept-new\n"
    )
    with_config = effective(config=config)
    assert {name: with_config[name] for name in ("batchmode", "requesttty", "forwardx11", "loglevel")} == {
        "batchmode": "yes",
        "requesttty": "false",
        "forwardx11": "no",
        "loglevel": "INFO",
    }
    assert with_config["clearallforwardings"] == "yes"
    assert with_config["controlmaster"] == "false"
    assert with_config["controlpath"] == "/tmp/none"  # a shared connection is used
    assert (with_config["forwardagent"], with_config["stricthostkeychecking"]) == ("yes", "accept-new")
    assert effective()["connecttimeout"] == str(ssh.CONNECT_TIMEOUT)
    assert effective("-o", "ConnectTimeout=77")["connecttimeout"] == "77"
    assert effective("-oControlMaster=auto", "-v")["loglevel"] == "DEBUG"


# --- the line that a login shell gets --------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("setup", ["", "true"])
@pytest.mark.parametrize("shell", SHELLS)
def test_words_arrive_as_they_are(shell, setup, locale, user_home):
    stdin = setup_input(setup) + b"the wire\n"
    done = lie_in(shell, ssh.remote_line([*SHOW, *WORDS], setup), stdin, HOME=str(user_home), LC_ALL=locale)
    assert words_seen(done) == (WORDS, "the wire")


@pytest.mark.parametrize("setup", ["", "true"])
@pytest.mark.parametrize("shell", SHELLS)
def test_words_that_stay_legible_arrive_as_they_are(shell, setup, user_home):
    words = [word for word in WORDS if word.isascii() and word.isprintable() and not {"!", "\\"} & set(word)]
    line = ssh.remote_line([*SHOW, *words], setup)
    assert "printf %b" not in line
    stdin = setup_input(setup) + b"the wire\n"
    assert words_seen(lie_in(shell, line, stdin, HOME=str(user_home))) == (words, "the wire")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0"), max_size=12).filter(_encodable)
        | st.text("'\"\\!$`\n ~*?[]{}()<>|&;#%=^-@\t\r", max_size=12),
        max_size=30,
    )
)
def test_any_words_arrive_as_they_are(shell, words):
    assert words_seen(lie_in(shell, ssh.remote_line([*SHOW, *words], ""), b"\n")) == (words, "")


@given(st.lists(st.text(st.characters(exclude_characters="\0")).filter(_encodable), min_size=1), st.text("a '\n!\\é"))
def test_the_line_is_one_line_of_printable_ascii(command, setup):
    line = ssh.remote_line(command, setup)
    assert line.isascii()
    assert line.isprintable()
    assert not set("!") & set(line)


@pytest.mark.parametrize("setup", ["", "true"])
@pytest.mark.parametrize("name", ["python", "py thon", "it's!", "é"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_in_the_home_of_the_user_there_is_found(shell, name, setup, user_home):
    program = user_home / name
    program.write_text('#!/bin/sh\nprintf "%s" "$1"\n')
    program.chmod(0o755)
    line = ssh.remote_line([f"~/{name}", "~/x"], setup)
    done = lie_in(shell, line, setup_input(setup), HOME=str(user_home), LC_ALL="C.UTF-8")
    assert (done.stdout, done.stderr) == (b"~/x", b"")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_stays_between(shell):
    setup = "cd /\nexport HERE='it'\"'\"'s'"
    line = ssh.remote_line([sys.executable, "-S", "-c", "import os; print(os.getppid()) # !\n"], setup)
    assert int(lie_in(shell, line, setup_input(setup)).stdout) == os.getpid()


# --- the user's lines before -----------------------------------------------------------------------------------------


def run_after(
    setup: str, *command: str, home: Path, stdin: bytes = b"the wire\n"
) -> subprocess.CompletedProcess[bytes]:
    """A command after the user's lines, by the local launcher."""
    argv = local.argv("localhost", command or SHOW, Reach(setup=setup))
    env = {**os.environ, "HOME": str(home)}
    stdin = setup_input(setup) + stdin
    return subprocess.run(argv, input=stdin, capture_output=True, env=env, timeout=60, check=False)


def test_without_lines_before_the_command_is_run_by_itself():
    assert local.argv("localhost", ["a", "b c"], Reach()) == ["a", "b c"]


@pytest.mark.parametrize("shell", SHELLS)
def test_lines_before_survive_every_login_shell(shell, user_home):
    setup = "export A='one\ntwo' # it's a comment!\nif true; then\n  export B=\"$A\\\\!\"\nfi\nexport C=é\ncat <<'X'\nx\nX\n"
    show = "import os; print(ascii([os.environ[name] for name in 'ABC']))"
    line = ssh.remote_line([sys.executable, "-c", show], setup)
    done = lie_in(shell, line, setup_input(setup), HOME=str(user_home), LC_ALL="C.UTF-8")
    assert done.stdout.decode().strip() == r"['one\ntwo', 'one\ntwo\\!', '\xe9']"
    assert done.stderr == b"x\n"


@from_table
def test_lines_before_can_not_eat_the_input_of_the_command(setup, user_home):
    assert words_seen(run_after(setup, home=user_home)) == ([], "the wire")


def test_what_lines_before_print_does_not_get_among_the_output_of_the_command(user_home):
    done = run_after("echo noise; echo noise >&9 || true; (sleep 0.1; echo late) &", home=user_home)
    assert words_seen(done) == ([], "the wire")
    assert b"noise" in done.stderr


def test_login_files_run_before_and_can_neither_eat_nor_print(user_home):
    (user_home / ".bash_profile").write_text("echo hello; cat; read -r project; export FROM_PROFILE=yes\n")
    assert words_seen(run_after("test $FROM_PROFILE = yes", home=user_home)) == ([], "the wire")


def test_scripts_that_are_sourced_do_not_take_the_words_of_the_command_for_theirs(user_home):
    (user_home / "setvars.sh").write_text('echo "$# arguments" >&2; shift 1 && exit 3 || true\n')
    done = run_after(". ~/setvars.sh", *SHOW, "--force", home=user_home)
    assert words_seen(done) == (["--force"], "the wire")
    assert b"0 arguments" in done.stderr


@from_table
def test_failed_lines_before_end_with_a_status_of_their_own(setup, user_home):
    (user_home / ".bash_logout").write_text("false\ntrue\n")  # under `set -e` this would make a status of its own
    done = run_after(setup, home=user_home)
    assert (done.returncode, done.stdout) == (EXIT_SETUP_FAILED, b"")


@pytest.mark.parametrize("setup", ["set -eu", "trap - EXIT", "cd /", "exec 2>/dev/null", "false; true"])
def test_lines_before_that_change_the_shell_do_not_stop_the_command(setup, user_home):
    assert words_seen(run_after(setup, home=user_home)) == ([], "the wire")


def test_a_command_that_is_not_there_is_no_failure_of_the_lines_before(user_home):
    done = run_after("true", "/nonexistent/python9", home=user_home)
    assert done.returncode == 127
    assert done.stderr == b"setup: line 1: /nonexistent/python9: No such file or directory\n"


def test_what_the_command_ends_with_is_passed_on(user_home):
    assert run_after("trap 'echo bye' EXIT", "sh", "-c", "exit 5", home=user_home).returncode == 5


def test_the_command_has_no_descriptors_of_the_shell_that_ran_before(user_home):
    done = run_after("true", "ls", "/proc/self/fd", home=user_home)
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3: the folder that ls reads


@given(st.text(st.characters(exclude_characters="\0")).filter(_encodable))
def test_setup_lines_travel_as_one_line_of_ascii(setup):
    sent = setup_input(setup)
    assert sent.count(b"\n") == bool(setup)
    assert sent.isascii()


def test_the_shell_that_runs_setup_lines_does_not_have_them_as_arguments(user_home):
    done = run_after(": swordfish; tr '\\0' ' ' </proc/$$/cmdline >&2", home=user_home)
    assert b"bash -lc" in done.stderr
    assert b"swordfish" not in done.stderr
