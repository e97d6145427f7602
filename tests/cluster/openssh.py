"""What the nodes need of OpenSSH: keys, the two config files, and telling sshd from other processes."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tests.cluster.namespaces import program
from tests.support import PATIENCE

PORT = 2222  # Where every sshd listens. Not 22: an ssh that is not given the config file finds nobody.


def make_key(path: Path) -> None:
    """Makes a key pair without a passphrase: `path` and `path`.pub."""
    subprocess.run(
        [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )


def server_config(addresses: Sequence[str], key: Path, known_keys: Path, pid_file: Path, home: Path) -> str:
    """A plain sshd_config: who has the key comes in, and nothing is taken over from the client's environment. `addresses`: where to listen.
    `key`: the key of the host. `known_keys`: the public keys that may log in. `pid_file`: to be written by sshd. `home`: the folder in
    HOME, where shells read their start files. Those of this machine can cost 0.1 s for each connection."""
    lines = [
        f"Port {PORT}",
        *(f"ListenAddress {address}" for address in addresses),
        f"HostKey {quoted(key)}",
        f"PidFile {quoted(pid_file)}",
        f"AuthorizedKeysFile {quoted(known_keys)}",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "StrictModes no",
        "UsePAM no",
        "UseDNS no",
        "PrintMotd no",
        "PrintLastLog no",
        f"SetEnv HOME={quoted(home)}",
        *_penalties_off(),
    ]
    return "\n".join([*lines, ""])


def client_config(hosts: Iterable[tuple[str, str]], key: Path, known_hosts: Path) -> str:
    """An ssh_config: the hosts by their names, and no other. `hosts`: name and address of each. `key`: ours. `known_hosts`: the keys of the hosts."""
    blocks = [f"Host {name}\n    HostName {address}\n" for name, address in hosts]
    common = f"""Host *
    User root
    Port {PORT}
    IdentityFile {quoted(key)}
    IdentitiesOnly yes
    UserKnownHostsFile {quoted(known_hosts)}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
"""
    return "".join([*blocks, common])


def known_host(address: str, public_key: Path) -> str:
    """A line of known_hosts."""
    kind, key = public_key.read_text().split()[:2]
    return f"[{address}]:{PORT} {kind} {key}\n"


def is_sshd(pid: int) -> bool:
    """Whether a process is an sshd, of a connection or not: since OpenSSH 9.8 those have programs of their own."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("sshd")
    except OSError:
        return False


@cache
def _penalties_off() -> tuple[str, ...]:
    """The line that keeps sshd from locking out whoever lost a connection, which tests do: OpenSSH has that since 9.8."""
    line = "PerSourcePenalties no"
    tried = subprocess.run(
        [program("sshd"), "-T", "-f", "/dev/null", "-o", line], capture_output=True, timeout=PATIENCE, check=False
    )
    return () if b"PerSourcePenalties" in tried.stderr else (line,)


def quoted(path: Path) -> str:
    """A path as one word, for a shell and for the config files of ssh."""
    return f'"{path}"'
