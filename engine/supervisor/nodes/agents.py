"""The agents of a run: links to them, and the paths of their files."""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from engine.core.failures import ssh
from engine.core.failures.services import Ended
from engine.core.failures.ssh import Trouble
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.plan.profile import Transport
from engine.core.run import events as ev
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.launchers import LAUNCHERS
from engine.launchers.setup import setup_input
from engine.linux.files import read_file, replace_file
from engine.linux.folders import make_folders
from engine.node.agent.wire import PROTOCOL
from engine.node.login import in_job
from engine.runs.paths import RunPaths
from engine.supervisor.job import Job
from engine.supervisor.nodes.bridge import BOOT_TIMEOUT, SETUP_TIMEOUT, Bridge, agent_program, boot_command, boot_here
from engine.supervisor.nodes.library import library_name, unpacked
from engine.supervisor.nodes.link import FAN_OUT, Link
from engine.supervisor.run import SupervisedRun

HEARTBEAT = 5.0
"""Longest seconds between two messages on a link; a shorter lease needs shorter ones. On this machine, only the supervisor counts
them: a link breaks there if a signal has stopped a process."""

SHORTEST_HEARTBEAT = 2.0  # a shorter one would treat a short pause of a process as its death


class Remote(NamedTuple):
    """Paths on another machine.

    `folder`: its agent's. `shared`: whether it sees the run's folder. `state`: for files that outlive a run, if not.
    """

    folder: str
    shared: bool
    state: str


class Agents:
    """The agents of a run's nodes. `bridge`: an open connection to the agent of the first node, or None."""

    def __init__(self, run: SupervisedRun, bridge: Bridge | None) -> None:
        self._run = run
        self._bridge = bridge
        self._transports: dict[str, Transport] = {node.name: node.transport for node in run.plan.nodes}
        self._on_news: Callable[[str, reports.AnyReport], None] = lambda *_: None
        self._gate = asyncio.Semaphore(FAN_OUT)
        self._here = ""
        """Folder of the package that ranks on this machine import, the same for all runs; empty: it can't be written, and the agent unpacks its own."""
        with contextlib.suppress(OSError, RuntimeError):
            self._here = unpacked()
        self.user_template = ""
        """The socket of the template of the user; empty: the run has none."""
        self.job = Job(run, self._drop_links)
        self.links: dict[str, Link] = {}
        self.remotes: dict[str, Remote] = {}
        """Nodes on other machines whose agents have sent their paths."""

    # --- links --------------------------------------------------------------------------------------------------------

    def make_links(self, on_news: Callable[[str, reports.AnyReport], None]) -> None:
        """Makes the links, without opening them. `on_news`: called with a node and a report of its agent. Raises ValueError for an invalid one."""
        self._on_news = on_news
        self.add_links()

    def add_links(self) -> None:
        """Makes the links to nodes that have none yet."""
        for node in self._run.plan.nodes:
            if node.name not in self.links:
                self._transports[node.name] = node.transport
                self.links[node.name] = self._make_link(node)

    def _make_link(self, planned: PlannedNode) -> Link:
        run, node, on_news = self._run, planned.name, self._on_news
        local = planned.transport == "local"
        heartbeat = max(min(HEARTBEAT, run.plan.launch.lease / 4), SHORTEST_HEARTBEAT)
        greeting = requests.Greeting(
            protocol=PROTOCOL,
            library=self._here if local and self._here else library_name(),
            mark=run.paths.mark if local else f"{run.paths.mark}.{self._number(node)}",
            title=f"{run.paths.run} {node}",
            folder=self.folder(node) if local else self._known_folder(node),
            relay=not local,
            shared=None if local else (str(run.paths.plan), self._plan_digest),
            in_job=in_job(),
            in_step=planned.transport == "slurm",
            terms=requests.Terms(
                lease=run.plan.launch.lease,
                on_disconnect=run.plan.launch.on_disconnect,
                stop_ladder=run.plan.launch.stop_ladder,
                stop_patience=run.plan.stop_patience,
                on_torn=run.plan.launch.on_torn,
                heartbeat=0.0 if local else heartbeat,
            ),
        )

        def take_failure(reason: str, is_final: bool) -> None:
            if is_final:
                self.job.end()
            else:
                run.handle(ev.NodeGivenUp(at=time.time(), node=node, reason=reason))

        return make_link(
            run.tasks,
            planned,
            run.plan,
            greeting,
            on_news=lambda news: on_news(node, news),
            on_down=lambda reason: run.handle(ev.NodeDisconnected(at=time.time(), node=node, reason=reason)),
            on_failed=take_failure,
            on_closed=lambda: run.handle(ev.NodeClosed(at=time.time(), node=node)),
            gate=self._gate,
            heartbeat=heartbeat,
            boot_timeout=SETUP_TIMEOUT if run.plan.reach.setup else BOOT_TIMEOUT,
            bridge=self._bridge if node == run.head else None,
        )

    def _drop_links(self) -> None:
        for link in self.links.values():
            link.drop()

    def _number(self, node: str) -> int:
        """The number of a node in its mark: nodes may share folders, and may even see each other's processes.

        A spare node has another one than the node that it replaces, whose processes may be left.
        """
        launched = self._run.launched
        return [*(one.name for one in launched.nodes), *launched.spare_names].index(node)

    @cached_property
    def _plan_digest(self) -> str:
        """Digest of the plan, by which an agent recognises the run's folder: its path may belong to another folder there."""
        return hashlib.sha256(read_file(self._run.paths.plan)).hexdigest()

    # --- files on nodes -----------------------------------------------------------------------------------------------

    def is_elsewhere(self, node: str) -> bool:
        return self._transports[node] != "local"

    def is_in_slurm(self, node: str) -> bool:
        """Whether the environment of the node's agent is that of a job of Slurm."""
        transport = self._transports[node]
        return transport == "slurm" or (transport == "local" and "SLURM_JOB_ID" in os.environ)

    def learn_remote(self, node: str, hello: reports.Hello) -> None:
        """Stores the paths on another machine, also for the next connection. Raises ValueError: they are not absolute paths."""
        if not (os.path.isabs(hello.folder) and os.path.isabs(hello.state)):
            raise ValueError(f"{hello.folder!r} and {hello.state!r} are not absolute paths")
        self.remotes[node] = Remote(hello.folder, hello.shared, hello.state)
        self.links[node].remember_folder(hello.folder)
        where = self._run.paths.node_folder_note(node)
        with contextlib.suppress(OSError):
            make_folders(str(where.parent))
            replace_file(where, hello.folder.encode())

    def _known_folder(self, node: str) -> str:
        """Returns the folder of an agent on another machine, from its last connection; empty: the agent chooses."""
        try:
            return read_file(self._run.paths.node_folder_note(node)).decode()
        except (OSError, UnicodeDecodeError):
            return ""

    def folder(self, node: str) -> str:
        """Returns the folder of a node's agent, as a path on the node."""
        if (remote := self.remotes.get(node)) is not None:
            return remote.folder
        if self.is_elsewhere(node) and (known := self._known_folder(node)):
            return known  # from an earlier supervisor
        return str(self._run.paths.node(node))

    def paths(self, node: str) -> RunPaths:
        """Returns the files of a node's ranks, as paths on the node. Only on this machine they are in the run's folder."""
        return RunPaths(Path(self.folder(node))) if node in self.remotes else self._run.paths

    def checkpoints(self, node: str) -> Path:
        """Returns the folder of checkpoints, as a path on the node. It outlives the run's files if the node does not see the run's folder."""
        remote, run = self.remotes.get(node), self._run.paths
        return (run if remote is None or remote.shared else RunPaths(Path(remote.state) / run.run)).checkpoints

    def library(self, node: str) -> str:
        """Returns the folder on the node from which ranks import `rankdeck`."""
        if self._here and not self.is_elsewhere(node):
            return f"{self._here}/python"
        return f"{self.folder(node)}/library/{library_name()}/python"

    def program(self, node: str, name: str) -> str:
        """Returns the path on the node of a program that is sent with the library."""
        return os.path.join(os.path.dirname(self.library(node)), name)


def make_link(
    tasks: asyncio.TaskGroup, node: PlannedNode, plan: LaunchPlan, greeting: requests.Greeting, **more: Any
) -> Link:
    """Returns a link to the agent of a node. `greeting`: the first frame. `**more`: arguments of `Link`."""
    if node.transport == "local" and not plan.reach.setup:  # which may lead into a container
        boot, preamble = boot_here(plan.node_python), b""
    else:
        boot, preamble = boot_command(plan.node_python), setup_input(plan.reach.setup) + agent_program()
    argv = LAUNCHERS[node.transport](node.name, boot, plan.reach)

    def explain(status: int | None, said: str, ended: Ended | None = None) -> Trouble:
        return ssh.explain(
            node.name, status=status, said=said, python=plan.node_python, setup=bool(plan.reach.setup),
            transport=node.transport, job=plan.reach.slurm_job, ended=ended,
        )  # fmt: skip

    return Link(tasks, node.name, argv, greeting, explain=explain, preamble=preamble, **more)
