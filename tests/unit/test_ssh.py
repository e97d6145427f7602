"""Why a node has no agent is told from what ssh, shells, PAM and Python really say."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.failures.known import Cause, causes
from engine.core.failures.ssh import (
    EXIT_CUT_OFF,
    EXIT_REFUSED,
    EXIT_SETUP_FAILED,
    MAX_LINE,
    MAX_LINES,
    Trouble,
    explain,
)
from engine.core.plan.plan import Reach
from engine.launchers import local
from engine.launchers.setup import setup_input
from engine.node.agent import wire

BANNER = "Unauthorized access prohibited.\nPermission denied to all but members. Connection refused otherwise.\n"
"""sshd's `Banner`, which comes before all else that it says."""

KEY_CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r
It is also possible that a host key has just been changed.\r
The fingerprint for the ED25519 key sent by the remote host is
SHA256:2m40hArmpNRu3Y6jgdDiPcXiZKmwaalO9AdjA/hXcS4.\r
Please contact your system administrator.\r
Add correct host key in /home/ann/.ssh/known_hosts to get rid of this message.\r
Offending ED25519 key in /home/ann/.ssh/known_hosts:2\r
  remove with:\r
  ssh-keygen -f "/home/ann/.ssh/known_hosts" -R "[127.0.0.1]:2222"\r
Host key for [127.0.0.1]:2222 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""

KEY_OPEN = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
Permissions 0644 for '/home/ann/.ssh/id' are too open.\r
It is required that your private key files are NOT accessible by others.\r
This private key will be ignored.\r
Load key "/home/ann/.ssh/id": bad permissions\r
ann@10.0.0.7: Permission denied (publickey).\r
"""

FISH = """\
fish: Unknown command: python9
fish: \n\
exec python9 -I -c 'import os,sys'
     ^~~~~~^
"""

PYTHON_3_7 = """\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "rankdeck-agent", line 648
    if (beat := self.terms.get("heartbeat")) and time.monotonic() - self.heard > MISSED * beat:
             ^
SyntaxError: invalid syntax
"""

NO_ENCODINGS = """\
  sys.path = [
    '/nonexist/lib/python311.zip',
  ]
Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007fa0f6c07b80 (most recent call first):
  <no Python frame>
"""

NO_ZLIB = """\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ModuleNotFoundError: No module named 'zlib'
"""

CLOSED_ON_THE_WAY = (
    "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"
)
NEGOTIATE = (
    "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found. Their offer: ssh-rsa,ssh-dss\r\n"
)
OLD_BANNER = (
    "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by 10.0.0.7 port 22\r\n"
)

SAID: list[tuple[str, int, str, str, str]] = [
    # name, status, what was said, the fact, a part of the hint
    #
    # --- ssh of OpenSSH 9.2 (Debian 12) against its own sshd; only addresses and folders are changed
    (
        "no key",
        255,
        "ann@10.0.0.7: Permission denied (publickey).\r\n",
        "it refuses the login of ann@10.0.0.7 (publickey)",
        "ssh gpu01 true, which must not prompt",
    ),
    (
        "no key, after a banner",
        255,
        BANNER + "ann@10.0.0.7: Permission denied (publickey).\r\n",
        "it refuses the login of ann@10.0.0.7 (publickey)",
        "ssh-copy-id gpu01",
    ),
    (
        "no ticket",
        255,
        "ann@gpu01: Permission denied (gssapi-keyex,gssapi-with-mic,password).\r\n",
        "it refuses the login of ann@gpu01 (gssapi-keyex,gssapi-with-mic,password)",
        "kinit",
    ),
    (
        "an agent that does not sign",
        255,
        'sign_and_send_pubkey: signing failed for ED25519 "/home/ann/.ssh/id" from agent: agent refused operation\r\n'
        "ann@10.0.0.7: Permission denied (publickey).\r\n",
        "the ssh agent on this machine refuses to use your key",
        "ssh-add",
    ),
    (
        "no such configuration",
        255,
        "Can't open user config file /home/ann/x: No such file or directory\r\n",
        "ssh can't read /home/ann/x: No such file or directory",
        "layout.ssh_options",
    ),
    (
        "no process",
        255,
        "exec request failed on channel 0\r\n",
        "its sshd could not start a process for you",
        "too many processes",
    ),
    (
        "a password",
        255,
        "ann@gpu01: Permission denied (password,keyboard-interactive).\r\n",
        "it refuses the login of ann@gpu01 without a prompt (password,keyboard-interactive)",
        "ControlMaster",
    ),
    (
        "key that others may read",
        255,
        KEY_OPEN,
        "ssh ignores /home/ann/.ssh/id because others can read it, and no other login works",
        "chmod 600 '/home/ann/.ssh/id'",
    ),
    (
        "key that is none",
        255,
        'Load key "/home/ann/.ssh/id": error in libcrypto\r\nann@10.0.0.7: Permission denied (publickey).\r\n',
        "ssh can't use /home/ann/.ssh/id: error in libcrypto; no other login works",
        "IdentityFile",
    ),
    (
        "too many keys",
        255,
        BANNER + "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures\r\n"
        "Disconnected from 10.0.0.7 port 22\r\n",
        "ssh offered more keys than it accepts",
        "IdentitiesOnly yes",
    ),
    (
        "unknown host key",
        255,
        "Host key verification failed.\r\n",
        "its host key is not known here, or not trusted",
        "ssh gpu01 true",
    ),
    (
        "changed host key",
        255,
        KEY_CHANGED,
        "its host key differs from /home/ann/.ssh/known_hosts, line 2: it was reinstalled, or it is another machine",
        "ssh-keygen -f '/home/ann/.ssh/known_hosts' -R '[127.0.0.1]:2222'",
    ),
    (
        "no common algorithm",
        255,
        NEGOTIATE,
        "ssh and its sshd have no host key type in common; it offers ssh-rsa,ssh-dss",
        "~/.ssh/config",
    ),
    (
        "refused",
        255,
        "ssh: connect to host 10.0.0.7 port 2299: Connection refused\r\n",
        "no sshd listens on 10.0.0.7, port 2299",
        "Port in ~/.ssh/config",
    ),
    (
        "timed out",
        255,
        "ssh: connect to host 10.7.7.2 port 2222: Connection timed out\r\n",
        "10.7.7.2 does not answer on port 2222: it is down, or a firewall blocks ssh",
        "ssh gpu01 true",
    ),
    (
        "a silent sshd",
        255,
        "Connection timed out during banner exchange\r\nConnection to 10.0.0.7 port 22 timed out\r\n",
        "it accepts the connection but sends nothing: its sshd hangs or is overloaded",
        "ConnectTimeout",
    ),
    (
        "no route",
        255,
        "ssh: connect to host 10.7.7.2 port 2222: No route to host\r\n",
        "10.7.7.2 is unreachable: No route to host",
        "ProxyJump",
    ),
    (
        "no network",
        255,
        "ssh: connect to host 10.8.8.8 port 2222: Network is unreachable\r\n",
        "10.8.8.8 is unreachable: Network is unreachable",
        "ProxyJump",
    ),
    (
        "no address of our own",
        255,
        "bind 1.2.3.4: Cannot assign requested address\r\nssh: connect to host 10.0.0.7 port 22: failure\r\n",
        "no connection to 10.0.0.7, port 22: failure",
        "ssh gpu01 true",
    ),
    (
        "no such name",
        255,
        "ssh: Could not resolve hostname gpu01: Name or service not known\r\n",
        "this machine can't resolve gpu01: Name or service not known",
        "layout.nodes",
    ),
    (
        "no name server",
        255,
        "ssh: Could not resolve hostname gpu01: Temporary failure in name resolution\r\n",
        "no name server answered for gpu01",
        "network",
    ),
    ("MaxStartups", 255, OLD_BANNER, "its sshd closed the connection immediately, perhaps because of too many new connections (MaxStartups)", "sshd works"),
    (
        "MaxStartups, reset",
        255,
        "kex_exchange_identification: read: Connection reset by peer\r\nConnection reset by 10.0.0.7 port 22\r\n",
        "its sshd closed the connection immediately, perhaps because of too many new connections (MaxStartups)",
        "sshd works",
    ),
    (
        "MaxStartups, OpenSSH 10.5",
        255,
        "Connection closed by 10.0.0.7 port 22\r\n",
        "its sshd closed the connection immediately, perhaps because of too many new connections (MaxStartups)",
        "sshd works",
    ),
    (
        "jump host down",
        255,
        "ssh: connect to host login2 port 22: Connection refused\r\n" + CLOSED_ON_THE_WAY,
        "at a jump host: no sshd listens on login2, port 22",
        "Port",
    ),
    (
        "jump host down whose name says what it is",
        255,
        "ssh: connect to host jump1 port 22: Connection refused\r\n" + CLOSED_ON_THE_WAY,
        "at a jump host: no sshd listens on jump1, port 22",
        "Port",
    ),
    (
        "jump host unknown",
        255,
        "Host key verification failed.\r\n" + CLOSED_ON_THE_WAY,
        "at a jump host: its host key is not known here, or not trusted",
        "ssh gpu01 true",
    ),
    (
        "jump host that lets nobody in",
        255,
        "ann@login2: Permission denied (publickey).\r\n" + CLOSED_ON_THE_WAY,
        "at a jump host: it refuses the login of ann@login2 (publickey)",
        "ssh gpu01 true",
    ),
    (
        "busy jump host",
        255,
        OLD_BANNER + CLOSED_ON_THE_WAY,
        "at a jump host: its sshd closed the connection immediately, perhaps because of too many new connections (MaxStartups)",
        "sshd works",
    ),
    (
        "node down behind a jump host",
        255,
        "channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding failed\r\n" + CLOSED_ON_THE_WAY,
        "its jump host can't reach it: connect failed: Connection refused",
        "from the jump host",
    ),
    (
        "proxy command missing",
        255,
        "/bin/bash: line 1: /nonexistent/nc: No such file or directory\n" + CLOSED_ON_THE_WAY,
        "the ProxyJump or ProxyCommand to it failed: /bin/bash: line 1: /nonexistent/nc: No such file or directory",
        "ssh gpu01 true",
    ),
    (
        "proxy command silent",
        255,
        CLOSED_ON_THE_WAY,
        "the ProxyJump or ProxyCommand to it ended without a connection",
        "ssh gpu01 true",
    ),
    (
        "option of the user",
        255,
        "command-line: line 0: Bad configuration option: nonsense\r\n",
        "ssh refuses an option: Bad configuration option: nonsense",
        "layout.ssh_options",
    ),
    ("port of the user", 255, "Bad port '99999'\n", "ssh refuses an option: Bad port '99999'", "layout.ssh_options"),
    (
        "flag of the user",
        255,
        "unknown option -- Z\r\nusage: ssh [-46AaCfGgKkMNnqsTtVvXxYy] [-B bind_interface]\n           [-b bind_address]\n",
        "ssh refuses an option: unknown option -- Z",
        "layout.ssh_options",
    ),
    (
        "line of the configuration",
        255,
        "/home/ann/.ssh/config: line 1: Bad configuration option: frobnicate\r\n"
        "/home/ann/.ssh/config: terminating, 1 bad configuration options\r\n",
        "ssh can't use /home/ann/.ssh/config, line 1: Bad configuration option: frobnicate",
        "correct that line",
    ),
    (
        "configuration of another user",
        255,
        "Bad owner or permissions on /home/ann/.ssh/config\r\n",
        "ssh refuses /home/ann/.ssh/config: it belongs to another user, or others can write to it",
        "chmod 600 '/home/ann/.ssh/config'",
    ),
    (
        "RemoteCommand",
        255,
        "Cannot execute command-line and remote command.\r\n",
        "ssh's configuration sets a RemoteCommand, so no other command can run",
        'layout.ssh_options = ["-o", "RemoteCommand=none"]',
    ),
    (
        "MaxSessions",
        255,
        BANNER + "channel 0: open failed: connect failed: open failed\r\n",
        "its sshd opens no session on this connection (MaxSessions)",
        "ControlPath=none",
    ),
    (
        "connection lost",
        255,
        "Connection to 10.0.0.7 closed by remote host.\r\n",
        "the connection broke before its agent had started",
        "check the node",
    ),
    ("killed there", 255, "", "the command there was killed, or ssh ended, without output", "memory"),
    (
        "ssh says something new",
        255,
        "Warning: remember this\r\nsomething new\r\n@@@@\r\n",
        "ssh failed: something new",
        "ssh gpu01 true",
    ),
    # --- accounts: PAM, nologin, Slurm
    (
        "account expired",
        255,
        "Your account has expired; please contact your system administrator.\nConnection closed by 10.0.0.7 port 22\r\n",
        "your account there has expired",
        "administrator",
    ),
    (
        "password expired",
        1,
        "You are required to change your password immediately (administrator enforced).\n"
        "WARNING: Your password has expired.\nPassword change required but no TTY available.\n",
        "your password there has expired",
        "ssh gpu01",
    ),
    (
        "nologin",
        1,
        "This account is currently not available.\n",
        "your account there has no login shell",
        "can log in",
    ),
    (
        "no job",
        255,
        "Access denied by pam_slurm_adopt: you have no active jobs on this node\nConnection closed by 10.0.0.7 port 22\r\n",
        "Slurm only allows logins of users with a job there",
        "squeue --me",
    ),
    (
        "boots",
        255,
        '"System is booting up. Unprivileged users are not permitted to log in yet. Please come back later."\n'
        "Connection closed by 10.0.0.7 port 22\r\n",
        'it allows no logins now: "System is booting up. Unprivileged users are not permitted to log in yet. Please come back later."',
        "later",
    ),
    # --- no such Python: bash 5.2, dash 0.5.12, zsh 5.9, fish 3.6, tcsh 6.24, and bash after launch.setup
    ("bash", 127, "bash: line 1: exec: python9: not found\n", "there is no python9 there", "launch.python"),
    ("bash, path", 127, "bash: line 1: /x/python9: No such file or directory\n", "there is no python9 there", "launch.python"),
    ("dash", 127, "dash: 1: exec: python9: not found\n", "there is no python9 there", "launch.python"),
    ("zsh", 127, "zsh:1: command not found: python9\n", "there is no python9 there", "launch.python"),
    ("fish", 127, FISH, "there is no python9 there", "launch.python"),
    ("tcsh", 1, "python9: Command not found.\n", "there is no python9 there", "launch.python"),
    ("setup", 127, "setup: line 1: exec: python9: not found\n", "there is no python9 there", "launch.setup"),
    (
        "home not mounted",
        127,
        "Could not chdir to home directory /home/ann: No such file or directory\ndash: 1: exec: /home/ann/x: not found\n",
        "your home directory there, /home/ann, can't be entered: No such file or directory",
        "ssh gpu01 df -h",
    ),
    ("no bash", 127, "dash: 1: exec: bash: not found\n", "it has no bash, which launch.setup needs", "install bash"),
    # --- not to be run
    (
        "bash, no x",
        126,
        "bash: line 1: /etc/passwd: Permission denied\nbash: line 1: exec: /etc/passwd: cannot execute: Permission denied\n",
        "python9 is not executable there",
        "launch.python",
    ),
    ("dash, no x", 126, "dash: 1: exec: /tmp: Permission denied\n", "python9 is not executable there", "launch.python"),
    ("zsh, no x", 126, "zsh:1: permission denied: /etc/passwd\n", "python9 is not executable there", "launch.python"),
    (
        "fish, no x",
        126,
        "fish: Unknown command. '/etc/passwd' exists but is not an executable file.\nexec /etc/passwd -I\n     ^~~~~~~~~~^\n",
        "python9 is not executable there",
        "launch.python",
    ),
    ("tcsh, no x", 1, "/etc/passwd: Permission denied.\n", "python9 is not executable there", "launch.python"),
    (
        "bash, other machine",
        126,
        "bash: line 1: /x/arm: cannot execute binary file: Exec format error\nbash: line 1: /x/arm: Success\n",
        "python9 was built for another type of machine",
        "built for that node",
    ),
    (
        "dash, other machine",
        126,
        "dash: 1: exec: /x/arm: Exec format error\n",
        "python9 was built for another type of machine",
        "built for that node",
    ),
    (
        "zsh, other machine",
        126,
        "zsh:1: exec format error: /x/arm\n",
        "python9 was built for another type of machine",
        "built for that node",
    ),
    (
        "tcsh, other machine",
        1,
        "/x/arm: Exec format error. Wrong Architecture.\n",
        "python9 was built for another type of machine",
        "built for that node",
    ),
    (
        "fish, other machine",
        126,
        "exec: Failed to execute process: '/x/arm' the file could not be run by the operating system.\n",
        "python9 was built for another type of machine",
        "built for that node",
    ),
    # --- a Python that does not come up: 2.7.18, 3.7.16, 3.11
    (
        "Python 2",
        2,
        "Unknown option: -I\nusage: /x/python2.7 [option] ... [-c cmd | -m mod | file | -] [arg] ...\nTry `python -h' for more information.\n",
        "python9 is too old there: the agent needs 3.8",
        "newer",
    ),
    ("Python 3.7", 1, PYTHON_3_7, "python9 is too old there: the agent needs 3.8", "newer"),
    ("PYTHONHOME", 1, NO_ENCODINGS, "python9 can't find its standard library there", "PYTHONHOME"),
    ("no zlib", 1, NO_ZLIB, "python9 lacks the standard module zlib there", "complete Python"),
    (
        "no libpython",
        127,
        "/x/python3: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory\n",
        "python9 does not start there: it lacks libpython3.11.so.1.0",
        "module load",
    ),
    (
        "old glibc",
        1,
        "/x/python3: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /x/python3)\n",
        "python9 was built for a newer system: GLIBC_2.34 is missing there",
        "launch.python",
    ),
    # --- a node at its limits
    (
        "memory, ld.so",
        127,
        "/usr/bin/python3: error while loading shared libraries: libc.so.6: failed to map segment from shared object\n",
        "it does not have enough memory to start a process",
        "ulimit -v",
    ),
    (
        "memory, Python",
        1,
        'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nMemoryError\n',
        "it does not have enough memory to start a process",
        "ulimit -v",
    ),
    (
        "processes, bash",
        254,
        "/etc/profile: fork: retry: Resource temporarily unavailable\n/etc/profile: fork: Resource temporarily unavailable\n",
        "you can't start more processes there",
        "ulimit -u",
    ),
    ("processes, dash", 2, "sh: 1: Cannot fork\n", "you can't start more processes there", "ulimit -u"),
    (
        "files",
        127,
        "/usr/bin/python3: error while loading shared libraries: libm.so.6: cannot open shared object file: Error 24\n",
        "the limit of open files there is reached",
        "ulimit -n",
    ),
    ("killed, said by bash", 137, "", "python9 was killed there by SIGKILL", "memory"),
    # --- the agent says why it refuses
    ("disk full", EXIT_REFUSED, "[Errno 28] No space left on device", "a disk there is full", "free space"),
    (
        "disk full, path",
        EXIT_REFUSED,
        "[Errno 28] No space left on device: '/run/user/7/rankdeck'",
        "a disk there is full: '/run/user/7/rankdeck'",
        "free space",
    ),
    (
        "quota",
        EXIT_REFUSED,
        "[Errno 122] Disk quota exceeded: '/home/ann/runs'",
        "your disk quota there is used up: '/home/ann/runs'",
        "quota -s",
    ),
    (
        "read-only",
        EXIT_REFUSED,
        "[Errno 30] Read-only file system: '/x/sub'",
        "a file system there is read-only: '/x/sub'",
        "TMPDIR",
    ),
    (
        "not ours",
        EXIT_REFUSED,
        "[Errno 13] Permission denied: '/root/x'",
        "the agent has no permission to write there: '/root/x'",
        "writable",
    ),
    (
        "no temporary folder",
        EXIT_REFUSED,
        "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']",
        "no temporary folder there is writable",
        "TMPDIR",
    ),
    (
        "other reason",
        EXIT_REFUSED,
        "the agent on this node does not answer",
        "its agent exited: the agent on this node does not answer",
        "check the node",
    ),
    # --- the rest
    ("setup failed", EXIT_SETUP_FAILED, "setup: line 1: module: command not found\n", "launch.setup failed: line 1: module: command not found", "bash -l"),
    ("setup silent", EXIT_SETUP_FAILED, "", "launch.setup failed without output", "bash -l"),
    ("cut off", EXIT_CUT_OFF, "", "the connection broke while the agent was being sent", "check the node"),
    ("forced command", 0, "go away\n", "another program ran there instead of the agent, and ended: go away", "login file"),
    ("killed here", -signal.SIGKILL, "", "the command that connects to it was killed by SIGKILL", "this machine"),
    ("unknown", 3, "stty: 'standard input': Inappropriate ioctl for device\n", "the command there ended with exit 3: stty: 'standard input': Inappropriate ioctl for device", "python9"),
    ("no ssh", 127, "can't start ssh: No such file or directory", "ssh is not installed on this machine", "install"),
]  # fmt: skip

WORTH_A_RETRY = {
    "MaxStartups",
    "MaxStartups, reset",
    "MaxStartups, OpenSSH 10.5",
    "busy jump host",
    "no name server",
    "connection lost",
    "cut off",
}


@pytest.mark.parametrize(("name", "status", "said", "fact", "hint"), SAID, ids=[row[0] for row in SAID])
def test_what_is_said_is_told_in_words(name, status, said, fact, hint):
    trouble = explain("gpu01", status=status, said=said.encode(), python="python9", setup=True)
    assert trouble.fact == fact
    assert hint in trouble.hint
    assert trouble.retry == (name in WORTH_A_RETRY)
    assert "{" not in trouble.text


@pytest.mark.parametrize(
    "cause",
    [cause for cause in causes() if cause.speaker not in ("", "slurm", "pbs")],
    ids=lambda cause: f"{cause.id} {cause.pattern[:30]}",
)
def test_every_cause_of_a_failed_connection_is_shown(cause: Cause) -> None:
    assert any(re.search(cause.pattern, said.replace("\r\n", "\n"), re.MULTILINE) for _, _, said, _, _ in SAID)


def test_silence_is_told():
    trouble = explain("gpu01", status=None, said="", python="python9", setup=False)
    assert trouble == Trouble(
        fact="it did not answer in time",
        hint="check the node, and how long python9 takes to start there",
    )
    assert trouble.text == f"{trouble.fact}; {trouble.hint}"


def test_the_reserved_status_means_nothing_where_no_setup_ran():
    trouble = explain("gpu01", status=EXIT_SETUP_FAILED, said="", python="python9", setup=False)
    assert trouble.fact == "the command there ended with exit 97"


def test_words_of_ssh_count_only_where_ssh_has_failed():
    said = "Connection closed by 10.0.0.7 port 22\nann@gpu02: Permission denied (publickey).\n"
    trouble = explain("gpu01", status=3, said=said, python="python9", setup=False)
    assert trouble.fact == "the command there ended with exit 3: ann@gpu02: Permission denied (publickey)."


def test_statuses_are_those_of_the_agent():
    assert (wire.EXIT_CUT_OFF, wire.EXIT_FAILED) == (EXIT_CUT_OFF, EXIT_REFUSED)


@pytest.mark.parametrize(
    ("setup", "fact"),
    [
        ("nosuchmodule load cuda", "launch.setup failed: line 1: nosuchmodule: command not found"),
        ("set -u\necho $nope", "launch.setup failed: line 2: nope: unbound variable"),
        ("exit 3", "launch.setup failed without output"),
    ],
)
def test_real_setup_lines_that_fail_are_told(setup, fact, tmp_path):
    argv = local.argv("gpu01", [sys.executable, "-c", ""], Reach(setup=setup))
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, input=setup_input(setup), capture_output=True, env=env, check=False)
    assert explain("gpu01", status=done.returncode, said=done.stderr, python="python3", setup=True).fact == fact


# --- nothing that is said is trusted ---------------------------------------------------------------------------------

STATUSES = st.none() | st.integers(-70, 300) | st.sampled_from([1, 97, 98, 99, 126, 127, 255])
FRAGMENTS = st.sampled_from([line for row in SAID for line in row[2].splitlines(keepends=True)])


@given(
    STATUSES, st.lists(FRAGMENTS | st.text(max_size=40) | st.just("\x1b[31m\x1b]0;x\x07\u202e\r\n{node}{0}")), st.text()
)
def test_whatever_is_said_makes_two_short_printable_lines(status, parts, python):
    trouble = explain("gpu01", status=status, said="".join(parts), python=python, setup=True)
    for text in (trouble.fact, trouble.hint):
        assert text.isprintable()
        assert 0 < len(text) <= MAX_LINE
    assert explain("gpu01", status=status, said="".join(parts).encode(errors="replace"), python=python, setup=True)


def test_control_sequences_reach_nobody():
    said = b"ssh: connect to host \x1b]0;owned\x07\x1b[2Jgpu\xe2\x80\xae01\xff port 22: Connection refused\r\n"
    fact = explain("gpu01", status=255, said=said, python="python9", setup=False).fact
    assert fact == "no sshd listens on gpu01\ufffd, port 22"


@pytest.mark.parametrize(
    "line",
    [
        'Load key "x": y\n',
        "Permissions 1 for 'x' are too open\n",
        "Offending key in x:1\n",
        "agent refused operation\n",
        "a@b: Permission denied (" + "publickey," * 40 + "\n",
        "x" * 100_000 + "\n",
        "\x1b[" * 5000 + "\n",
        "a: line 1: " * 30 + "\n",
    ],
)
def test_a_flood_is_looked_at_in_no_time(line):
    begin = time.process_time()
    explain("gpu01", status=255, said=line * (10 * MAX_LINES), python="python9", setup=False)
    assert time.process_time() - begin < 5
