"""A supervisor on standby: it has imported everything, and the template of the node has imported torch.

A front end starts one while the user views a profile, and names the run at its launch. It ends, and leaves nothing behind, when the front
end does or has been silent for a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from engine.core.plan.plan import LaunchPlan
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.installed import LIBRARY
from engine.node.agent.wire import PROTOCOL
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan
from engine.supervisor.agents import make_link
from engine.supervisor.bridge import Bridge
from engine.supervisor.library import pack
from engine.supervisor.link import Link
from engine.supervisor.log import note

STANDBY_TIME = 60.0
"""Seconds without a message from the front end after which the standby ends."""

MAX_SPARES = 65
"""Most pre-forked processes, for the ranks of the node and the store."""

LEASE = 20.0
"""Seconds that the agent stays if this process is killed."""


async def wait_for_run(paths: RunPaths) -> tuple[Path, Bridge | None] | None:
    """Warms the first node's template up, and waits.

    Args:
        paths: of the temporary folder that replaces the run's, with a plan in it.

    Returns:
        The folder of the run to supervise, which now contains the agent's files, and the connection to the agent; None if the standby
        is not needed.
    """
    plan = read_plan(paths)
    loop = asyncio.get_running_loop()
    words = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        link = _warming_link(paths, plan, tasks)
        link.open(LEASE)
        run = await _listen(words)
        if run is None:
            link.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.wait_closed(), LEASE)
        bridge = await link.release()
    pipe.close()
    if run is not None:
        paths.nodes.mkdir(mode=0o700, exist_ok=True)  # the launch may precede the agent
        paths.nodes.rename(RunPaths(run).nodes)
    shutil.rmtree(paths.folder, ignore_errors=True)
    return (run, bridge) if run is not None else None


def _warming_link(paths: RunPaths, plan: LaunchPlan, tasks: asyncio.TaskGroup) -> Link:
    node = plan.nodes[0]
    folder = str(paths.node(node.name))
    library = pack(LIBRARY)

    def take(news: reports.AnyReport) -> None:
        if isinstance(news, reports.Hello) and not link.closing:
            if not news.library:
                link.send(requests.InstallLibrary(name=library.name, tar=library.tar))
            path = f"{folder}/library/{library.name}/python"
            link.send(
                requests.WarmTemplate(
                    argv=(plan.python,),
                    env=plan.env,
                    env_defaults=plan.env_defaults,
                    library=path,
                    spares=min(len(plan.nodes[0].ranks) + 1, MAX_SPARES),
                )
            )

    terms = requests.Terms(lease=LEASE, on_disconnect="keep", stop_ladder=(("SIGKILL", 5.0),))
    link = make_link(
        tasks,
        node,
        plan,
        requests.Greeting(protocol=PROTOCOL, library=library.name, mark=paths.mark, folder=folder, terms=terms),
        on_news=take,
        on_down=note,
        on_failed=note,
        on_closed=lambda: None,
        gate=asyncio.Semaphore(1),
    )
    return link


async def _listen(words: asyncio.StreamReader) -> Path | None:
    """Returns the run's folder, or None: the front end has gone or is silent."""
    while True:
        try:
            line = await asyncio.wait_for(words.readline(), STANDBY_TIME)
        except TimeoutError:
            return None
        if not line.endswith(b"\n"):
            return None
        if folder := json.loads(line):
            return Path(folder)


def become_supervisor_of(paths: RunPaths) -> None:
    """Redirects this process's log to that of a run."""
    log = os.open(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 2)
    os.close(log)
