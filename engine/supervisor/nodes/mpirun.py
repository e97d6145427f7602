"""mpirun of a run: mpirun itself on the first node, and a daemon on each other node, started by the agents."""

import os
from collections.abc import Callable
from itertools import groupby
from typing import Any

from engine.core.plan.mpirun import (
    Mpi,
    Part,
    host_name,
    interface_environment,
    launcher_script,
    mpirun_argv,
    mpirun_environment,
)
from engine.core.run.state import Holding, Running, Starting
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.run import SupervisedRun

MAX_COMMAND = 1 << 16  # most characters of a command that mpirun may request


class Mpirun:
    """mpirun of a run's attempts, as requests to agents. `of_processes`: returns the fields that are the same for all processes of a node."""

    def __init__(self, run: SupervisedRun, agents: Agents, of_processes: Callable[[str], dict[str, Any]]) -> None:
        self._run, self._agents, self._of_processes = run, agents, of_processes
        self._commands: dict[str, str] = {}
        """Commands that start the daemons of this attempt, by node."""
        self.start_attempt()

    def start_attempt(self) -> None:
        """Forgets the daemons of the attempt before. The next one may have another backend and other nodes."""
        self._plan = self._run.plan
        self._mpi, self._nodes = self._plan.backend.mpi, [node.name for node in self._plan.nodes]
        self._commands.clear()

    @property
    def is_used(self) -> bool:
        """Whether mpirun starts the ranks of this attempt."""
        return self._mpi is not None

    def placement(self, node: str, attempt: int, address: str, interface: str) -> requests.Placement | None:
        """Returns how ranks of a node get their places: the first node starts mpirun, the others wait for its daemon. None: without mpirun.
        `address`: at which the others reach the first node. `interface`: Interface of the node, towards the others; empty: unknown."""
        if self._mpi is None:
            return None
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
            env=self._environment(self._mpi),
            log=self._log(node, attempt),
            launcher=launcher_script(self._proxy(node, attempt)),
        )

    def take_daemon(self, node: str, wanted: reports.DaemonWanted) -> None:
        """Starts a daemon on another node for mpirun, which runs on the first. Raises ValueError if the request is invalid."""
        is_on = isinstance(self._run.state.phase, Starting | Running | Holding)
        if not (is_on and self.is_used and wanted.attempt == self._run.state.attempt and node == self._run.head):
            return
        if len(wanted.command) > MAX_COMMAND or "\0" in wanted.command:
            raise ValueError(f"invalid command of {len(wanted.command)} characters")
        hosts = [host_name(index) for index in range(len(self._nodes))]
        target = self._nodes[hosts.index(wanted.host)]
        self._commands[target] = wanted.command
        self.start_daemon(target)

    def start_daemon(self, node: str) -> None:
        """Starts mpirun's daemon on a node, if it has requested one. A running one is not started again."""
        if self._mpi is None or (command := self._commands.get(node)) is None:
            return
        attempt, env = self._run.state.attempt, self._environment(self._mpi)
        daemon = requests.Daemon(name="mpirun's daemon", env=env, log=self._log(node, attempt), command=command)
        self._agents.links[node].send(requests.StartDaemon(attempt=attempt, mpirun=daemon, **self._of_processes(node)))

    def take_end(self, node: str, status: int, reason: str) -> None:
        """Handles the end of mpirun, or of its daemon on a node: tells agents that wait for it."""
        head, attempt = self._run.head, self._run.state.attempt
        if node == head:
            for other in self._run.plan.nodes[1:]:
                self._agents.links[other.name].send(requests.MpirunGone(attempt=attempt, reason=reason))
        elif self.is_used and node in self._commands:
            host = host_name(self._nodes.index(node))
            self._agents.links[head].send(requests.DaemonEnded(attempt=attempt, host=host, status=status))

    def _log(self, node: str, attempt: int) -> str:
        return str(self._agents.paths(node).mpirun_log(attempt))

    def _proxy(self, node: str, attempt: int) -> tuple[str, ...]:
        program, folder = self._agents.program(node, "mpi_proxy.py"), self._agents.folder(node)
        return (self._plan.node_python, "-I", "-S", program, folder, str(attempt))

    def _environment(self, mpi: Mpi) -> dict[str, str]:
        return mpirun_environment(mpi, os.geteuid(), spread=len(self._nodes) > 1)
