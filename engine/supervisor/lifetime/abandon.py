"""Ends what a run has left on its nodes, for a run whose supervisor can't start: for example, its journal is damaged."""

import asyncio
import contextlib
import os
import signal
import socket
import time

import msgspec

from engine.core.errors import RankdeckError, SupervisorError
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import launch
from engine.core.wire import agent_reports as reports
from engine.linux.files import replace_file
from engine.linux.processes import kill_quietly, marked, signal_process
from engine.linux.sockets import peer_of
from engine.runs.ends.ending import write_end
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.record import find_value, read_plan, read_summary, remove_runtime_files, socket_of
from engine.supervisor.lifetime.guard import end_guards
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.run import SupervisedRun

STOPPED = "stopped without a supervisor"  # why the run has ended
SWEEP_TIME = 5.0  # seconds for killed processes to disappear
LOCK_TIME = 5.0  # seconds in which a supervisor that can't start, and that its guard has just started, must have ended


async def abandon(paths: RunPaths, by: str) -> None:
    """Ends all agents of a run, and with them its ranks. The run has ended as stopped then. `by`: who wants that. Raises SupervisorError: a
    supervisor runs, the plan can't be read, or a node can't be reached."""
    plan = read_plan(paths)
    deadline = time.monotonic() + LOCK_TIME
    while True:
        try:
            lock = take_lock(paths)
            break
        except SupervisorError:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(0.05)
    try:
        end_guards(paths)  # or they would try to start a supervisor for ever
        nodes = tuple((node.name, node.ranks) for node in plan.nodes)
        launched = ev.RunLaunched(
            at=time.time(), run=paths.run, name=plan.name, nodes=nodes, on_failure="hold", max_restarts=0
        )
        missed: list[str] = []
        tasks = asyncio.TaskGroup()

        def note_missed(event: AnyEvent) -> None:
            if isinstance(event, ev.NodeGivenUp):
                missed.append(f"{event.node}: {event.reason}")

        run = SupervisedRun(paths, plan, launch(launched)[0], [], note_missed, tasks)
        agents = Agents(run, None)

        def end(node: str, report: reports.AnyReport) -> None:
            if isinstance(report, reports.Hello):
                agents.links[node].close()

        async with tasks:
            agents.make_links(end)
            for link in agents.links.values():
                link.open(0.0)
        if missed:
            raise SupervisorError("; ".join(missed), hint=f"rankdeck stop --now {paths.run} tries again")
        try:
            write_end(paths, STOPPED, by=by)
        except (RankdeckError, OSError):  # the journal is damaged, so the summary alone tells the end
            if (summary := read_summary(paths)) is not None:
                ended = msgspec.structs.replace(summary, state="stopped", ended_at=time.time(), reason=STOPPED)
                replace_file(paths.summary, msgspec.json.encode(ended))
        remove_runtime_files(paths)
    finally:
        os.close(lock)


def end_supervisor(paths: RunPaths) -> None:
    """Kills the supervisor of a run, which can't end the run itself, and its guard, which would start the next one."""
    supervisor = 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wire:
        wire.connect(socket_of(paths))
        if peer_of(wire)[1] == os.geteuid():
            supervisor = peer_of(wire)[0]
            kill_quietly(supervisor, signal.SIGSTOP)  # it would replace its guard
    end_guards(paths)
    if supervisor:
        kill_quietly(supervisor, signal.SIGKILL)
        end_guards(paths)  # one that it was about to start


def end_processes(paths: RunPaths) -> None:
    """Ends what a run has left on this machine, where nothing is known of its nodes: agents, wardens, and everything with its mark. `paths`: Paths of
    the run, whose lock is taken."""
    end_guards(paths)
    for note in paths.nodes.glob("*/owners"):
        for pid, start in find_value(note, list[tuple[int, int]]) or ():
            signal_process(pid, start, signal.SIGKILL)
    deadline = time.monotonic() + SWEEP_TIME
    while (left := set(marked([paths.mark])) - {os.getpid()}) and time.monotonic() < deadline:
        for pid in left:
            kill_quietly(pid, signal.SIGKILL)
        time.sleep(0.01)
