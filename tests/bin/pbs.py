"""A fake PBS: its commands, for one job at a time on nodes that are folders of this machine.

A task gets what the manual and the source of OpenPBS say: no input, its output appended to that of the job, next to nothing of the
caller's environment, a session of its own. Everything is in the folder $FAKE_PBS.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(os.environ["FAKE_PBS"])


def give_up(text: str, status: int = 255) -> NoReturn:
    """Ends like a command of PBS that fails."""
    sys.stderr.write(text + "\n")
    sys.exit(status)


def environment(node: str) -> dict[str, str]:
    """What processes of the job have on a node: its own variables, and folders of the node."""
    place = ROOT / node
    for name in ("tmp", "run"):
        (place / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    job = {name: value for name, value in os.environ.items() if name.startswith(("PBS_", "FAKE_PBS"))}
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "USER", "LANG") if name in os.environ}
    own = {"TMPDIR": str(place / "tmp"), "XDG_RUNTIME_DIR": str(place / "run"), "FAKE_PBS_NODE": str(place)}
    return {**kept, **job, **own}


def pbs_tmrsh(words: list[str]) -> int:
    """Runs a task on a node of the job. Returns its exit status."""
    node, command = words[0], words[1:]
    if "PBS_ENVIRONMENT" not in os.environ:
        give_up("pbs_tmrsh: not executing under PBS")
    if node not in Path(os.environ["PBS_NODEFILE"]).read_text().split():
        give_up(f'pbs_tmrsh: host "{node}" is not a node in job <{os.environ["PBS_JOBID"]}>')
    if node.startswith("down"):
        give_up(f'pbs_tmrsh: tm_poll(spawn): host "{node}" err TM_SUCCESS 17002')
    with (ROOT / "output").open("ab") as output:
        return subprocess.call(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(node), cwd="/",
            start_new_session=True,
        )  # fmt: skip


COMMANDS = {"pbs_tmrsh": pbs_tmrsh}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
