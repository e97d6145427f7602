"""The template of the user for a run on this machine: found, or started. `engine.node.user_template` is its program."""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import can_stand_by, template_key
from engine.launchers.setup import setup_input, with_setup
from engine.linux.locks import try_lock
from engine.node import user_template as program
from engine.node.agent.ranks.jobs import environment_of
from engine.node.probe.allowed import has_room_for_template
from engine.runs.paths import runtime_folder
from engine.runs.standbys import place
from engine.runs.templates import template_folder
from engine.supervisor.log import note
from engine.supervisor.nodes.library import unpacked

START_TIME = 60.0  # seconds that a new template waits for the first run, at least


def find_user_template(plan: LaunchPlan, *, starts: bool) -> str:
    """The path of its socket; empty: the run uses none. `starts`: starts one if there is none."""
    if not plan.linger or not can_stand_by(plan) or plan.backend.library_links:
        return ""
    try:
        return _find(plan, starts=starts)
    except (OSError, RuntimeError, RankdeckError, ValueError) as error:
        note(f"no template of the user: {error}")
        return ""


def _find(plan: LaunchPlan, *, starts: bool) -> str:
    library, sockets = unpacked(), runtime_folder()
    environment = _environment(plan, "")
    like = program.likeness(environment, list(os.sched_getaffinity(0)), program.read_names(str(sockets)))
    folder = template_folder(template_key(plan, place(code=library), like))
    path = folder / "socket"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    lock = try_lock(folder / "lock")
    if lock is None:
        return str(path)
    with os.fdopen(lock):
        if not starts or not has_room_for_template():
            return ""
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen()
            _start(plan, library, folder, listener.fileno(), lock)
    return str(path)


def _environment(plan: LaunchPlan, library: str) -> dict[str, str]:
    """The environment of a template: that of ranks, but only with installed packages on its path."""
    request: dict[str, Any] = {
        "env_defaults": plan.env_defaults,
        "env": plan.env,
        "library": library,
        "library_path": (plan.backend.library_path, {}),
    }
    environment = environment_of(request, program.NO_MARK)
    environment["PYTHONPATH"] = os.pathsep.join([library, *program.split_path(environment)[0]])
    return environment


def _start(plan: LaunchPlan, library: str, folder: Path, listener: int, lock: int) -> None:
    """Starts the process with copies of the descriptors. Raises OSError."""
    # The shell of a setup uses low numbers.
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 64) for one in (listener, lock)]
    terms = {
        "folder": str(folder), "listener": high[0], "lock": high[1], "modules": plan.preload, "refused": [],
        "linger": max(START_TIME, plan.linger),
    }  # fmt: skip
    try:
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                with_setup(plan.reach.setup, [plan.python, "-u", f"{library}/template.py", "user", json.dumps(terms)]),
                env=_environment(plan, f"{library}/python"),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=high,
                start_new_session=True,
            )
    finally:
        for one in high:
            os.close(one)
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(setup_input(plan.reach.setup))
    threading.Thread(target=process.wait, daemon=True).start()  # it ends when its child has begun
