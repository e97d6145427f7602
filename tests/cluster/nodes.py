"""Nodes on a bridge: a cluster, for as long as tests need it.

The namespace of the tests has an address on the bridge too; it is the login node. Only root can make this; Linux, iproute2,
nftables, util-linux and OpenSSH do.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.cluster.namespaces import PREFIX, free_network, ip, reason_to_skip, remove, remove_leftovers
from tests.cluster.node import Node
from tests.cluster.openssh import client_config, known_host, make_key
from tests.support import PATIENCE, Process

__all__ = ["Cluster", "Node", "cluster_for"]

LOGIN_HARDWARE_ADDRESS = "02:d5:00:00:00:fe"

_serial = itertools.count(1)


class Cluster:
    """A bridge with nodes on it, as a context manager. `folder`: for keys, configs and logs; it must not exist. `count`: how many nodes."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.bridge = f"{PREFIX}{os.getpid()}-{next(_serial)}"
        self._folder = folder
        self._config = folder / "ssh_config"
        network = free_network()
        self.address = f"10.213.{network}.254"
        """Ours, as the nodes see us."""
        self.address6 = f"fd5d:a9c1:{network}::fe"
        self.nodes = [
            Node(folder / f"node{number}", f"{self.bridge}-{number}", number, network, folder / "key.pub")
            for number in range(1, count + 1)
        ]

    @property
    def ssh_options(self) -> list[str]:
        """What makes ssh find the nodes by their names."""
        return ["-F", str(self._config)]

    def node(self, number: int) -> Node:
        """A node by its number, from 1."""
        return self.nodes[number - 1]

    def ssh(
        self, name: str, command: str, *options: str, seconds: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node as a user would, to its end."""
        argv = ["ssh", *self.ssh_options, *options, name, command]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )

    def processes(self) -> dict[str, list[Process]]:
        """What goes on on the nodes, by their names; of those where something does."""
        return {node.name: found for node in self.nodes if (found := node.processes())}

    def reconnect(self) -> None:
        """Makes every node reachable again."""
        for node in self.nodes:
            node.reconnect()

    def heal(self) -> None:
        """Makes every node what it was at the start."""
        for node in self.nodes:
            node.heal(self._hosts)

    @property
    def _hosts(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{node.address} {node.name}" for node in self.nodes)]
        return "\n".join([*lines, ""])

    def __enter__(self) -> Self:
        remove_leftovers(self.bridge)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        make_key(self._folder / "key")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without it
        ip(f"link add {self.bridge} address {LOGIN_HARDWARE_ADDRESS} type bridge mcast_snooping 0")
        _allow_ipv6(self.bridge)
        ip(
            f"address add {self.address}/24 dev {self.bridge}",
            f"address add {self.address6}/64 dev {self.bridge} nodad",
            f"link set {self.bridge} up",
        )
        for node in self.nodes:
            node.start(self._hosts)
        # All know all others for ever, or the kernel would say `No route to host` of a node that is cut off.
        everybody = [(node.address, node.address6, node.hardware_address) for node in self.nodes]
        everybody.append((self.address, self.address6, LOGIN_HARDWARE_ADDRESS))
        places = [(node.link, node.interface, node.address) for node in self.nodes]
        places.append(("", self.bridge, self.address))
        for namespace, interface, own in places:
            lines = [
                f"neighbour replace {address} lladdr {hardware} dev {interface} nud permanent"
                for address4, address6, hardware in everybody
                for address in (address4, address6)
                if address4 != own
            ]
            ip(*lines, namespace=namespace)
        self._write_client_config()

    def _write_client_config(self) -> None:
        known = [
            known_host(address, self._folder / node.name / "host_key.pub")
            for node in self.nodes
            for address in (node.address, node.address6)
        ]
        known_hosts = self._folder / "known_hosts"
        known_hosts.write_text("".join(known))
        hosts = [(node.name, node.address) for node in self.nodes]
        self._config.write_text(client_config(hosts, self._folder / "key", known_hosts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.remove()
        remove(self.bridge)
        shutil.rmtree(self._folder, ignore_errors=True)


def _allow_ipv6(interface: str) -> None:
    """Lets an interface have IPv6 addresses in a container whose network has none."""
    switch = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    if switch.read_text().strip() != "0":
        switch.write_text("0")


def cluster_for(factory: pytest.TempPathFactory, count: int) -> Iterator[Cluster]:
    """A cluster as a fixture yields it. Skips where none can be made."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Cluster(factory.mktemp("cluster") / "c", count=count) as cluster:
        yield cluster
