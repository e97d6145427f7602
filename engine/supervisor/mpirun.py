"""mpirun of a run: mpirun itself on the first node, and a daemon on each of the others, which the agents start."""

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
from engine.core.wire import agent as wire

MAX_COMMAND = 1 << 16
"""Characters of a command that mpirun may want run."""


class MpirunFiles(NamedTuple):
    """Paths on a node: our program that mpirun starts there, the agent's folder, and mpirun's log."""

    program: str
    folder: str
    log: str


class Mpirun:
    """What agents need so that mpirun knows the ranks of a plan, in one attempt.

    Args:
        mpi: whose `mpirun` it is.
        plan: the run's.
        files: gives the paths of a node and an attempt, once its agent is there.
    """

    def __init__(self, mpi: Mpi, plan: LaunchPlan, files: Callable[[str, int], MpirunFiles]) -> None:
        self._mpi = mpi
        self._plan = plan
        self._files = files
        self._nodes = [node.name for node in plan.nodes]
        self._commands: dict[str, str] = {}
        """What starts the daemon of this attempt, by node."""

    def placement(self, node: str, attempt: int, address: str, interface: str) -> wire.Placement:
        """How ranks of a node get their places: the first node starts mpirun, the others wait for its daemon.

        Args:
            node: which.
            attempt: of the run.
            address: at which the others reach the first node.
            interface: of the node, towards the others; empty: nothing is known.
        """
        # Ranks alone have that in their environment: mpirun would forward the first node's to all.
        defaults = interface_environment(self._mpi, interface)
        if node != self._nodes[0]:
            return wire.Placement(argv=(), defaults=defaults)
        parts = [
            Part(host=host_name(self._nodes.index(home)), ranks=len(list(ranks)), program=self._proxy(home, attempt))
            for home, ranks in groupby(place.node for place in self._plan.places)
        ]
        return wire.MpirunPlacement(
            argv=tuple(mpirun_argv(self._mpi, parts, address)),
            defaults=defaults,
            name="mpirun",
            env=self._environment(),
            log=self._files(node, attempt).log,
            launcher=launcher_script(self._proxy(node, attempt)),
        )

    def take_daemon(self, host: str, command: str) -> str:
        """Takes in that mpirun wants a daemon on another node.

        Args:
            host: as mpirun calls it.
            command: for a shell.

        Returns:
            The node.

        Raises:
            ValueError: there is no such node, or no such command.
        """
        if len(command) > MAX_COMMAND or "\0" in command:
            raise ValueError(f"a command of {len(command)} characters")
        hosts = [host_name(index) for index in range(len(self._nodes))]
        node = self._nodes[hosts.index(host)]
        self._commands[node] = command
        return node

    def daemon(self, node: str, attempt: int) -> wire.Daemon | None:
        """The daemon of a node; None where mpirun wants none."""
        if (command := self._commands.get(node)) is None:
            return None
        log = self._files(node, attempt).log
        return wire.Daemon(name="mpirun's daemon", env=self._environment(), log=log, command=command)

    def host_of_daemon(self, node: str) -> str:
        """What mpirun calls a node on which it wanted a daemon; empty where it did not."""
        return host_name(self._nodes.index(node)) if node in self._commands else ""

    def _proxy(self, node: str, attempt: int) -> tuple[str, ...]:
        files = self._files(node, attempt)
        return (self._plan.python, "-I", "-S", files.program, files.folder, str(attempt))

    def _environment(self) -> dict[str, str]:
        return mpirun_environment(self._mpi, os.geteuid(), spread=len(self._nodes) > 1)
