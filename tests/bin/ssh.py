"""A fake ssh: takes the options of ssh, and runs the command on this machine as sshd would run it on another.

Every host has a home and a TMPDIR of its own under $FAKE_SSH_ROOT, and the command gets next to nothing of the caller's
environment. Each call is noted in $FAKE_SSH_LOG. The first word of a host's name says what is wrong with it: see `main`.
"""

import contextlib
import getopt
import json
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

OPTIONS = "1246AB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVW:XYab:c:e:fgi:kl:m:no:p:qstvw:xy"  # of OpenSSH 9, for getopt

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.
Please contact your system administrator.
Add correct host key in {home}/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in {home}/.ssh/known_hosts:1
Host key for {host} has changed and you have requested strict checking.
Host key verification failed."""

SAYINGS = {
    "refused": "ssh: connect to host {host} port 22: Connection refused",
    "denied": "{user}@{host}: Permission denied (publickey).",
    "changed": CHANGED,
    "unknown": "ssh: Could not resolve hostname {host}: Name or service not known",
    "timeout": "ssh: connect to host {host} port 22: Connection timed out",
}
"""What ssh says of a host that it can't reach, by the first word of the host's name."""

BUSY = "kex_exchange_identification: Connection closed by remote host\nConnection closed by {host} port 22"
BUSY_CALLS = 2  # how many calls a busy host does not take: MaxStartups of sshd drops them like that

BANNER = "*** Authorized use only! All that you do here is monitored and recorded. ***\n" * 133
"""10 kB of what some sites greet with."""

PYTHON = re.compile(r"python[\d.]*")


def main(argv: list[str]) -> int:
    """Runs it.

    Args:
        argv: the words after `ssh`.

    Returns:
        What ssh would exit with.
    """
    user, host, command = parsed(argv)
    root = Path(os.environ["FAKE_SSH_ROOT"])
    note = json.dumps({"argv": argv, "host": host, "command": command}) + "\n"
    log = os.open(os.environ["FAKE_SSH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, note.encode())
    os.close(log)

    places = Places(root / host)
    kind = re.split(r"[^a-z]", host)[0]
    if kind in SAYINGS:
        give_up(SAYINGS[kind].format(host=host, user=user, home=Path.home()))
    if kind == "busy" and places.was_called_before() < BUSY_CALLS:
        give_up(BUSY.format(host=host))
    if kind == "silent":
        while True:
            signal.pause()
    if kind == "noisy":
        for stream in (sys.stdout, sys.stderr):
            stream.write(BANNER)
            stream.flush()
    environment = places.environment(user)
    if kind == "nopython":
        for word in words_of(command):
            if word.startswith("/") and PYTHON.fullmatch(os.path.basename(word)):
                print(f"bash: line 1: {word}: No such file or directory", file=sys.stderr)
                return 127
        environment["PATH"] = str(places.commands_without_python())
    return run(command, places.home, environment)


def parsed(argv: list[str]) -> tuple[str, str, str]:
    """User, host and command. Like ssh it takes options before the host and after it, until the first `--`."""
    try:
        options, rest = getopt.getopt(argv, OPTIONS)
        host, *words = rest or [""]
        if "--" not in argv[: len(argv) - len(rest)]:
            more, words = getopt.getopt(words, OPTIONS)
            options += more
    except getopt.GetoptError as error:
        give_up(f"ssh: {error}")
    if not host:
        give_up("usage: ssh [options] destination [command [argument ...]]")
    user, _, host = host.rpartition("@")
    user = user or dict(options).get("-l", pwd.getpwuid(os.geteuid()).pw_name)
    return user, host, " ".join(words)


def give_up(message: str) -> NoReturn:
    """Ends as ssh does: its lines end like those of a terminal in raw mode."""
    for line in message.splitlines():
        sys.stderr.write(f"{line}\r\n")
    sys.exit(255)


def words_of(command: str) -> list[str]:
    """The words of a command, those of commands inside it too; as far as they can be told."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command.split()
    return [inner for word in words for inner in (words_of(word) if len(word.split()) > 1 else [word])]


class Places:
    """What one host has of its own. `folder`: where."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.tmp = folder / "tmp"
        self.folder = folder
        for place in (self.home, self.tmp):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def was_called_before(self) -> int:
        """How often; this call is counted from now on."""
        for number in range(10**6):
            with contextlib.suppress(FileExistsError):
                (self.folder / f"call_{number}").touch(exist_ok=False)
                return number
        raise AssertionError("that is enough")

    def environment(self, user: str) -> dict[str, str]:
        """What sshd gives to a command, and FAKE_SSH_NODE, by which tests find the processes of a host."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "SSH_CONNECTION": "127.0.0.1 50000 127.0.0.1 22",
            "FAKE_SSH_NODE": str(self.folder),
        }

    def commands_without_python(self) -> Path:
        """A folder for the PATH, with all that the machine has in /usr/bin and /bin but Python."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for path in (found for place in ("/usr/bin", "/bin") for found in Path(place).iterdir()):
            if "python" not in os.path.realpath(path):
                with contextlib.suppress(FileExistsError):
                    (folder / path.name).symlink_to(path)
        return folder


def run(command: str, home: Path, environment: dict[str, str]) -> int:
    """Runs a command in a session of its own, behind pipes: as with sshd it outlives us, and then reads an end of file."""
    shell = ["/bin/sh", "-c", command] if command else ["/bin/sh"]
    child = subprocess.Popen(
        shell,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=environment,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    threading.Thread(target=copy, args=(0, child.stdin.fileno(), child.stdin.close), daemon=True).start()
    outputs = [
        threading.Thread(target=copy, args=(stream.fileno(), sink, stream.close))
        for stream, sink in ((child.stdout, 1), (child.stderr, 2))
    ]
    for thread in outputs:
        thread.start()
    for thread in outputs:
        thread.join()
    status = child.wait()
    return status if status >= 0 else 255


def copy(source: int, sink: int, close: Callable[[], None]) -> None:
    """Copies bytes as they come, until one side ends; then closes ours."""
    with contextlib.suppress(OSError):
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(sink, data) :]
    with contextlib.suppress(OSError):
        close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl+C
    os._exit(main(sys.argv[1:]))  # a thread may still wait for standard input
