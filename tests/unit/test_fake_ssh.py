"""The fake ssh is to a caller what ssh is."""

import re
import signal
import subprocess

import pytest

from tests.fake_ssh import fake_ssh, fake_ssh_hosts
from tests.support import PATIENCE, from_table, kill_hard, wait_gone, wait_until

__all__ = ["fake_ssh", "fake_ssh_hosts"]  # fixtures


def ssh(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh", *words], input=stdin, capture_output=True, timeout=PATIENCE, check=False)


@from_table
def test_options_are_told_from_host_and_command(before, fake_ssh):
    done = ssh(*before, "node1", "echo", "a  b", "'c  d'")
    assert (done.returncode, done.stdout) == (0, b"a b c  d\n"), done.stderr
    (call,) = fake_ssh.calls()
    assert call.argv == [*before, "node1", "echo", "a  b", "'c  d'"]
    assert (call.host, call.command) == ("node1", "echo a  b 'c  d'")


def test_options_may_come_after_the_host_but_not_after_the_command(fake_ssh):
    assert ssh("node1", "-T", "echo", "-n", "x").stdout == b"x"
    assert ssh("node1", "--", "echo", "-T").stdout == b"-T\n"


def test_a_user_is_told_from_the_host(fake_ssh):
    assert ssh("me@node1", "echo $USER").stdout == b"me\n"
    assert ssh("-l", "you", "node1", "echo $USER").stdout == b"you\n"
    assert {call.host for call in fake_ssh.calls()} == {"node1"}


@pytest.mark.parametrize("words", [["-Z", "node1"], ["-p"], [], ["node1", "-Z"]])
def test_what_ssh_would_not_understand_is_refused(fake_ssh, words):
    assert ssh(*words).returncode == 255


def test_bytes_go_both_ways_as_they_are(fake_ssh):
    data = bytes(range(256)) * 4000
    done = ssh("node1", "tee /dev/stderr", stdin=data)
    assert done.stdout == done.stderr == data


def test_a_status_comes_back_and_a_signal_does_not(fake_ssh):
    assert ssh("node1", "exit 7").returncode == 7
    assert ssh("node1", "kill -KILL $$").returncode == 255


def test_a_host_has_places_of_its_own_and_little_else(fake_ssh, monkeypatch):
    monkeypatch.setenv("RANKDECK_HOME", "/nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    said = {host: ssh(host, "pwd; echo $HOME; echo $TMPDIR; touch mine; ls; env").stdout for host in ("node1", "node2")}
    for host, output in said.items():
        home, tmp = fake_ssh.home(host), fake_ssh.tmp(host)
        assert output.decode().splitlines()[:4] == [str(home), str(home), str(tmp), "mine"]
        assert tmp.stat().st_mode & 0o777 == 0o700
        names = set(re.findall(r"(?m)^(\w+)=", output.decode()))
        assert names & {"RANKDECK_HOME", "XDG_RUNTIME_DIR", "FAKE_SSH_ROOT"} == set()


def test_a_command_outlives_its_connection_and_reads_an_end_of_file(fake_ssh):
    argv = ["ssh", "node1", "cat; echo over > over; exec sleep 600"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: fake_ssh.processes("node1"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    wait_until((fake_ssh.home("node1") / "over").exists)
    wait_until(lambda: [one.command for one in fake_ssh.processes("node1")] == ["sleep 600 "])
    assert not fake_ssh.processes("node2")
    kill_hard(fake_ssh.processes()[0].pid)


def test_ssh_waits_for_whoever_still_holds_its_output(fake_ssh):
    done = ssh("node1", "exec 3<&0; (read line <&3; echo $line) & exit 3", stdin=b"late\n")
    assert (done.returncode, done.stdout) == (3, b"late\n")


def test_a_process_that_is_left_on_a_host_fails_the_test(fake_ssh):
    ssh("node1", "sleep 600 >/dev/null 2>&1 &")
    (left,) = wait_until(fake_ssh.processes)
    with pytest.raises(AssertionError, match="sleep 600"):
        fake_ssh.remove(grace=0.1)
    wait_gone(left.pid)
    assert not fake_ssh.root.exists()
