"""A supervisor on standby: it has imported everything, and the template of the node has imported torch.

The app starts one while the user views a profile, and names the run at its launch. It ends, and leaves nothing behind, when the app does
or has been silent for a minute, if memory is short, if it can't be of use, and at SIGTERM.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.linux.files import open_regular
from engine.node.agent.wire import PROTOCOL
from engine.node.limits import is_memory_short
from engine.node.titles import show_title
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan
from engine.supervisor.log import note
from engine.supervisor.nodes.agents import make_link
from engine.supervisor.nodes.bridge import Bridge
from engine.supervisor.nodes.library import unpacked
from engine.supervisor.nodes.link import Link
from engine.supervisor.standby.user_template import find_user_template

STANDBY_TIME = 60.0  # seconds without a message from the front end after which the standby ends
MAX_SPARES = 65  # most pre-forked processes, for the ranks of the node and the store
LEASE = 20.0  # seconds that the agent stays if this process is killed


MEMORY_PERIOD = 5.0  # seconds between two looks at the memory that is left


async def wait_for_run(paths: RunPaths) -> tuple[RunPaths, Bridge | None] | None:
    """Warms the first node's template up, and waits.

    Args:
        paths: paths of a temporary folder with a plan. A launch replaces it by the folder of a run.

    Returns:
        The run to supervise, and the connection to its agent; None if the standby is not needed. The run's folder now contains the agent's
        files, and this process holds its lock.
    """
    plan = read_plan(paths)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    words = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        link = _warming_link(paths, plan, tasks, over)
        link.open(LEASE)
        naming, ending = tasks.create_task(_next_run(words)), tasks.create_task(_wait_over(over))
        await asyncio.wait((naming, ending), return_when=asyncio.FIRST_COMPLETED)
        folder = naming.result() if naming.done() else None
        naming.cancel()
        ending.cancel()
        run = None if folder is None else RunPaths(folder)
        if run is not None and not _can_take(run):
            run = None
        if run is None:
            link.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.wait_closed(), LEASE)
        bridge = await link.release()
    pipe.close()
    if run is not None:
        paths.nodes.mkdir(mode=0o700, exist_ok=True)  # the launch may precede the agent
        paths.nodes.rename(run.nodes)
    shutil.rmtree(paths.folder, ignore_errors=True)
    loop.remove_signal_handler(signal.SIGTERM)  # not before: the end of this process would leave a part of the folder
    return None if run is None else (run, bridge)


async def _next_run(words: asyncio.StreamReader) -> Path | None:
    """The folder of the run that the app names; None: it names none."""
    while True:
        try:
            line = await asyncio.wait_for(words.readline(), STANDBY_TIME)
        except TimeoutError:
            return None
        if not line.endswith(b"\n"):
            return None
        if folder := json.loads(line):
            return Path(folder)


def _can_take(run: RunPaths) -> bool:
    """Takes the lock of a run. False: it is supervised already, because its front end did not wait for this process."""
    try:
        take_lock(run)
    except (RankdeckError, OSError) as error:
        note(f"can't take {run.run}: {error}")
        return False
    return True


async def _wait_over(over: asyncio.Event) -> None:
    """Waits until this standby is to end without a run."""
    while not over.is_set() and not is_memory_short():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), MEMORY_PERIOD)


def _warming_link(paths: RunPaths, plan: LaunchPlan, tasks: asyncio.TaskGroup, over: asyncio.Event) -> Link:
    """The link to an agent that has a template. `over`: is set if the agent has no template."""
    node = plan.nodes[0]
    folder = str(paths.node(node.name))
    library = unpacked()
    user_template = find_user_template(plan, starts=True)

    def take(news: reports.AnyReport) -> None:
        if isinstance(news, reports.TemplateRefused):
            end(news.reason)
        if isinstance(news, reports.Hello) and not link.closing:
            link.send(
                requests.WarmTemplate(
                    argv=(plan.python,),
                    env=plan.env,
                    env_defaults=plan.env_defaults,
                    library=f"{library}/python",
                    preload=plan.preload,
                    user_template=user_template,
                    linger=min(plan.linger, STANDBY_TIME),
                    spares=min(len(plan.nodes[0].ranks) + 1, MAX_SPARES),
                )
            )

    def end(reason: str) -> None:
        note(reason)
        over.set()

    terms = requests.Terms(lease=LEASE, on_disconnect="keep", stop_ladder=(("SIGKILL", 5.0),), stop_patience=0.0)
    link = make_link(
        tasks,
        node,
        plan,
        requests.Greeting(
            protocol=PROTOCOL, library=library, mark=paths.mark, title="standby", folder=folder, terms=terms
        ),
        on_news=take,
        on_down=note,
        on_failed=lambda reason, _: end(reason),
        on_closed=lambda: None,
        gate=asyncio.Semaphore(1),
    )
    return link


def become_supervisor_of(paths: RunPaths) -> None:
    """Redirects this process's log to the log of a run, which `ps` shows from now on."""
    show_title("supervisor", paths.run)
    log = open_regular(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    os.close(log)
