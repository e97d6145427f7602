"""mpirun of a run: mpirun itself on the first node, and a daemon on each other node, started by the agents."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from engine.core.plan.mpirun import (
    Mpi,
    Part,
    host_name,
    interface_environment,
    launcher_script,
    mpirun_argv,
    mpirun_environment,
)
from engine.core.plan.plan import LaunchPlan
from engine.core.wire import agent_requests as requests

MAX_COMMAND = 1 << 16
"""Most characters of a command that mpirun may request."""


class MpirunFiles(NamedTuple):
    """Paths on a node: the program that mpirun starts there, the agent's folder, and mpirun's log."""

    program: str
    folder: str
    log: str


class Mpirun:
    """mpirun of one attempt, as requests to agents.

    Args:
        mpi: the MPI library.
        files: returns the paths of a node and an attempt, after its agent has connected.
    """

    def __init__(self, mpi: Mpi, plan: LaunchPlan, files: Callable[[str, int], MpirunFiles]) -> None:
        self._mpi = mpi
        self._plan = plan
        self._files = files
        self._nodes = [node.name for node in plan.nodes]
        self._commands: dict[str, str] = {}
        """Commands that start the daemons of this attempt, by node."""

    def placement(self, node: str, attempt: int, address: str, interface: str) -> requests.Placement:
        """Returns how ranks of a node get their places: the first node starts mpirun, the others wait for its daemon.

        Args:
            address: at which the others reach the first node.
            interface: Interface of the node, towards the others; empty: unknown.
        """
        # Not in mpirun's own environment, which it would forward to all nodes.
        defaults = interface_environment(self._mpi, interface)
        if node != self._nodes[0]:
            return requests.Placement(argv=(), defaults=defaults)
        parts = [
            Part(host=host_name(self._nodes.index(name)), ranks=len(list(ranks)), program=self._proxy(name, attempt))
            for name, ranks in groupby(place.node for place in self._plan.places)
        ]
        return requests.MpirunPlacement(
            argv=tuple(mpirun_argv(self._mpi, parts, address)),
            defaults=defaults,
            name="mpirun",
            env=self._environment(),
            log=self._files(node, attempt).log,
            launcher=launcher_script(self._proxy(node, attempt)),
        )

    def take_daemon(self, host: str, command: str) -> str:
        """Records that mpirun requests a daemon on another node. `host`: mpirun's name of the node. `command`: for a shell.

        Returns:
            The node.

        Raises:
            ValueError: unknown node, or invalid command.
        """
        if len(command) > MAX_COMMAND or "\0" in command:
            raise ValueError(f"invalid command of {len(command)} characters")
        hosts = [host_name(index) for index in range(len(self._nodes))]
        node = self._nodes[hosts.index(host)]
        self._commands[node] = command
        return node

    def daemon(self, node: str, attempt: int) -> requests.Daemon | None:
        """Returns the daemon of a node; None if mpirun has requested none."""
        if (command := self._commands.get(node)) is None:
            return None
        log = self._files(node, attempt).log
        return requests.Daemon(name="mpirun's daemon", env=self._environment(), log=log, command=command)

    def host_of_daemon(self, node: str) -> str:
        """Returns mpirun's name of a node on which it has requested a daemon; empty if it has not."""
        return host_name(self._nodes.index(node)) if node in self._commands else ""

    def _proxy(self, node: str, attempt: int) -> tuple[str, ...]:
        files = self._files(node, attempt)
        return (self._plan.node_python, "-I", "-S", files.program, files.folder, str(attempt))

    def _environment(self) -> dict[str, str]:
        return mpirun_environment(self._mpi, os.geteuid(), spread=len(self._nodes) > 1)
