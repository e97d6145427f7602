"""A node that is real to all but the kernel: it has a network, a host name, mounts and an sshd of its own.

It is a network namespace that a cable joins to the bridge of its cluster. Processes and the file system are the machine's.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.namespaces import SBIN, ip, pids_in, program, remove
from tests.cluster.openssh import PORT, is_sshd, make_key, quoted, server_config
from tests.support import PATIENCE, Process, entries, kill_hard, wait_gone, wait_until

INTERFACES = ("eth1", "net2", "ens3", "ib4")
"""What nodes call their interface, in turn: neighbours differ, as in clusters that grew."""

ENVIRONMENT = {"PATH": SBIN}
"""What our own processes on nodes know: nothing of the test, or they would pass for processes that it left behind."""

# Holds a node's namespaces open: nsenter joins them by its pid.
ANCHOR = 'set -e; hostname "$0"; mount --bind "$1" /etc/hosts; echo ready; exec sleep infinity'

MUTE = entries("cluster/node", "mute")  # accepts every connection and never says a word

NOISE = """#!/bin/sh
cat {text}
cat {text} >&2
exec "$SHELL" -c "${{SSH_ORIGINAL_COMMAND:-exec $SHELL}}"
"""
"""What a talkative login script does to whoever wants a clean stream."""

NFTABLES = entries("cluster/node", "nftables")


class Node:
    """One machine of the cluster. Made by `Cluster`; what a test did to it, `heal` undoes. `folder`: for its files. `link`: the name of its
    namespace, and of its network cable on our side. `number`: from 1. `network`: the number of the cluster's network. `known_keys`: the
    public part of the only key that may log in."""

    def __init__(self, folder: Path, link: str, number: int, network: int, known_keys: Path) -> None:
        self.name = f"node{number}"
        self.address = f"10.213.{network}.{number}"
        self.address6 = f"fd5d:a9c1:{network}::{number}"
        self.hardware_address = f"02:d5:00:00:00:{number:02x}"
        self.interface = INTERFACES[(number - 1) % len(INTERFACES)]
        self.hosts = folder / "hosts"
        """Its /etc/hosts; to be written in place."""
        self.log = folder / "sshd.log"
        self.link = link
        self._folder = folder
        self._known_keys = known_keys
        self._anchor: subprocess.Popen[str] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None
        self._mute: subprocess.Popen[str] | None = None
        self._hidden: list[Path] = []
        self._lines: tuple[str, ...] = ()
        self._key = folder / "host_key"

    @property
    def sshd(self) -> int:
        """The pid of the sshd that listens."""
        assert self._sshd is not None, f"{self.name} has no sshd now"
        return self._sshd.pid

    # --- commands and processes --------------------------------------------------------------------------------------

    def inside(self, *words: str | Path) -> list[str]:
        """The argv that runs a command here, by root and without ssh. It keeps its pid, and starts in /."""
        assert self._anchor is not None, f"{self.name} is gone"
        return [program("nsenter"), f"--target={self._anchor.pid}", "--net", "--uts", "--mount", "--", *map(str, words)]

    def run(self, argv: Sequence[str | Path], seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Runs a command here, without ssh, to its end."""
        return subprocess.run(
            self.inside(*argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )

    def pids(self) -> list[int]:
        """Every process here, zombies apart."""
        return pids_in(self.link)

    def processes(self) -> list[Process]:
        """Every process here but what makes the node a node: sshd and its sessions."""
        ours = {one.pid for one in (self._anchor, self._mute) if one is not None}
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if pid not in ours and not is_sshd(pid):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:1000]
                    found.append(Process(pid, command.decode(errors="replace").strip()))
        return found

    def sessions(self) -> list[int]:
        """The pids of the sshds of open connections."""
        listener = self._sshd.pid if self._sshd is not None else 0
        return [pid for pid in self.pids() if pid != listener and is_sshd(pid)]

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pulls the cable: from now on there is silence, and nobody is told."""
        ip(f"link set {self.link} down")

    def block(self, *ports: int) -> None:
        """Puts up a firewall: what others send to these TCP ports is dropped in silence. The node reaches its own."""
        rules = NFTABLES.format(interface=self.interface, ports=", ".join(map(str, ports)))
        done = self.run([program("nft"), rules])
        assert done.returncode == 0, done.stderr

    def mend(self) -> None:
        """Undoes `cut` and `block`."""
        ip(f"link set {self.link} up")
        done = self.run([program("nft"), "flush ruleset"])
        assert done.returncode == 0, done.stderr

    def kill_sessions(self) -> None:
        """Ends every open connection, as an sshd that crashes would; the commands that it ran go on."""
        sessions = self.sessions()
        for pid in sessions:
            kill_hard(pid)
        wait_gone(*sessions)

    def stop_sshd(self) -> None:
        """From now on connections are refused. Open ones go on."""
        for process in (self._sshd, self._mute):
            _end(process)
        self._sshd = self._mute = None

    refuse = stop_sshd  # the fault, among the others by its name

    def start_sshd(self) -> None:
        """Listens again."""
        self.stop_sshd()
        config = self._folder / "sshd_config"
        pid_file, home = self._folder / "sshd.pid", self._folder / "home"
        plain = server_config((self.address, self.address6), self._key, self._known_keys, pid_file, home)
        config.write_text("".join([*(f"{line}\n" for line in self._lines), plain]))
        words = [program("sshd"), "-D", "-e", "-f", str(config)]
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._sshd = subprocess.Popen(
                self.inside(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT
            )
        listener = self._sshd

        def listens() -> bool:
            said = self.log.read_bytes()[start:]
            assert listener.poll() is None, f"sshd of {self.name} ended: {said.decode(errors='replace')}"
            return said.count(b"Server listening on ") == 2

        wait_until(listens, what=f"sshd of {self.name} listens")

    def configure(self, *lines: str) -> None:
        """Starts sshd again with these lines of sshd_config before ours; the first of two wins. `lines`: such as `MaxStartups 1:100:1`. None gives
        the plain sshd."""
        self._lines = lines
        self.start_sshd()

    def noise(self, text: str) -> None:
        """From now on every command's output and errors begin with this text, as from a talkative login script."""
        said, script = self._folder / "noise.txt", self._folder / "noise.sh"
        said.write_text(text)
        script.write_text(NOISE.format(text=quoted(said)))
        script.chmod(0o755)
        self.configure(f"ForceCommand {quoted(script)}")

    def hang(self) -> None:
        """From now on connections are accepted, and that is all."""
        self.stop_sshd()
        self._mute = _start_ready(self.inside(sys.executable, "-c", MUTE.format(port=PORT)))

    def new_host_key(self) -> None:
        """Starts sshd again with a key that nobody knows."""
        self._key = self._folder / "other_key"
        if not self._key.exists():
            make_key(self._key)
        self.start_sshd()

    def hide(self, *folders: Path, size: str = "256m") -> None:
        """From now on these folders are empty here, and what is written to them stays here, as far as there is space for it."""
        for folder in folders:
            done = self.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", self.name, folder])
            assert done.returncode == 0, done.stderr
            self._hidden.append(folder)

    def cover(self, path: Path, file: Path) -> None:
        """From now on a file here is another one."""
        done = self.run(["mount", "--bind", file, path])
        assert done.returncode == 0, done.stderr
        self._hidden.append(path)

    def add_dead_end(self, address: str) -> None:
        """From now on there is one interface more, which is up and leads nowhere. `address`: with the length of its network, such as `172.18.0.1/16`."""
        ip(
            "link add aux0 type veth peer name aux1",
            f"address add {address} dev aux0",
            "link set aux0 up",
            "link set aux1 up",
            namespace=self.link,
        )

    # --- from nothing, and back --------------------------------------------------------------------------------------

    def start(self, hosts: str) -> None:
        """Makes it: namespaces, addresses, sshd. The bridge exists. `hosts`: the text of /etc/hosts."""
        (self._folder / "home").mkdir(parents=True)
        make_key(self._key)
        self.hosts.write_text(hosts)
        ip(f"netns add {self.link}")
        bridge = self.link.rpartition("-")[0]
        ip(
            f"link add {self.link} type veth peer name {self.interface} address {self.hardware_address} netns {self.link}",
            f"link set {self.link} master {bridge} up",
        )
        ip(
            f"address add {self.address}/24 dev {self.interface}",
            f"address add {self.address6}/64 dev {self.interface} nodad",
            "link set lo up",
            f"link set {self.interface} up",
            namespace=self.link,
        )
        anchor = ["unshare", "--uts", "--mount", "sh", "-c", ANCHOR, self.name, str(self.hosts)]
        self._anchor = _start_ready([program("ip"), "netns", "exec", self.link, *anchor])
        self.start_sshd()

    def reconnect(self) -> None:
        """Makes it reachable, as it was at the start. Nothing that runs there is touched."""
        self.mend()
        key = self._folder / "host_key"
        if self._sshd is None or self._sshd.poll() is not None or self._lines or self._key != key:
            self._key = key
            self.configure()

    def heal(self, hosts: str) -> None:
        """Makes it all that it was at the start. Whatever still runs there is killed. `hosts`: the text of /etc/hosts."""
        self.reconnect()
        self.kill_sessions()
        wait_until(self._is_empty, what=f"no process is left on {self.name}")
        for folder in reversed(self._hidden):
            self.run(["umount", "--lazy", folder])
        self._hidden = []
        if self.run(["test", "-e", "/sys/class/net/aux0"]).returncode == 0:
            ip("link delete aux0", namespace=self.link)
        self.hosts.write_text(hosts)

    def remove(self) -> None:
        """Ends everything here, and leaves no trace of it."""
        remove(self.link)
        for process in (self._sshd, self._mute, self._anchor):
            _end(process)
        self._sshd = self._mute = self._anchor = None

    def _is_empty(self) -> bool:
        processes = self.processes()
        for process in processes:
            kill_hard(process.pid)
        return not processes


def _start_ready(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Starts what says `ready`, and waits for that."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline()
        if said != "ready\n":
            said += process.stdout.read()
            process.wait()
            raise AssertionError(f"{argv}: {said}")
    return process


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
