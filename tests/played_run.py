"""A supervisor's runner whose agents are played by a test."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.layout import parse_nodes
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan
from engine.core.run import events as ev
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.runs.paths import RunPaths
from engine.supervisor.journal import Journal
from engine.supervisor.runner import Runner


class PlayedLink:
    """A link that keeps what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[requests.Request] = []

    def open(self, patience: float) -> None:
        """It will be back."""

    def remember_folder(self, folder: str) -> None:
        """It is the same one."""

    def send(self, request: requests.Request) -> None:
        self.sent.append(request)


@contextlib.contextmanager
def play_launch(folder: Path, nodes: str) -> Iterator[Runner]:
    """A run that has just been launched; no node has answered. `folder`: where its folder is made. `nodes`: as in a profile."""
    paths, decided = _new_run(folder, layout={"nodes": nodes})
    journal = Journal(paths.journal)
    runner = Runner(paths, decided, journal, asyncio.TaskGroup())
    runner.agents.links = {node.name: PlayedLink() for node in decided.nodes}  # type: ignore[misc]
    yield runner
    journal.close()


@contextlib.contextmanager
def play_run(folder: Path, **sections: Any) -> Iterator[Runner]:
    """A run with ranks 0 and 1 on gpu01, and 2 and 3 on gpu02, all of them up. `folder`: where its folder is made. `**sections`: of its profile."""
    paths, decided = _new_run(folder, **sections)
    journal = Journal(paths.journal)
    Runner(paths, decided, journal, asyncio.TaskGroup())
    for node in decided.nodes:
        journal.append(ev.NodeConnected(at=1.0, node=node.name, agent_pid=1))
    journal.append(ev.StoreOpened(at=2.0, attempt=0, node="gpu01", address="10.0.0.1", port=1))
    for rank in range(4):
        journal.append(ev.RankSpawned(at=3.0, attempt=0, rank=rank, pid=10 + rank, generation=0))
    runner = Runner(paths, decided, journal, asyncio.TaskGroup())
    runner.agents.links = {node.name: PlayedLink() for node in decided.nodes}  # type: ignore[misc]
    yield runner
    journal.close()


def _new_run(folder: Path, **sections: Any) -> tuple[RunPaths, LaunchPlan]:
    data = {"schema": 1, "name": "job", "layout": {"nodes": "gpu[01-02]:2"}, "recipe": {"name": "linear"}, **sections}
    profile = profile_from_data(data, "job.toml")
    slots = parse_nodes(profile.layout.nodes, profile.layout.ranks_per_node)
    facts = tuple(NodeFacts(name=slot.node, cores=2, gpus=2, python="/usr/bin/python3") for slot in slots)
    backend = BackendSettings(name="nccl", env={}, device="cuda")
    decided = build_plan(profile, slots, facts, backend, workdir="/")
    paths = RunPaths(folder / "job-7f3a")
    paths.folder.mkdir()
    return paths, decided


def hear(runner: Runner, message: dict[str, Any], node: str = "gpu01") -> None:
    """Takes in what a node's agent sends, as a link does."""
    news = reports.read_report(message)
    assert news is not None
    runner.reports.take(node, news)
