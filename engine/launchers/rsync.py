"""Copies a folder to a node that does not share it, with rsync over ssh or, in a job, over srun or pbs_tmrsh."""

import json
import shlex
import sys

from engine.core.plan.plan import PlannedNode, Reach
from engine.launchers import pbs, slurm, ssh

TIMEOUT = 60  # seconds without data after which rsync gives up; without this, a broken connection blocks it for hours

SHELL = """
import json, os, subprocess, sys
at, mark = sys.argv.index("--server") - 1, b"RANKDECK-RSYNC 1\\n"
step = subprocess.Popen([*sys.argv[2:at], *json.loads(sys.argv[1]), *sys.argv[at:]], stdout=subprocess.PIPE)
said = b""
while mark not in said:
    data = os.read(step.stdout.fileno(), 65536)
    said += data
    if not data or len(said) > 1 << 20:
        step.kill() if data else None
        sys.exit(step.wait() or said.decode(errors="replace"))
data = said.partition(mark)[2]
while data := data or os.read(step.stdout.fileno(), 65536):
    data = data[os.write(1, data):]
sys.exit(step.wait())
"""
"""A program for rsync in place of ssh or srun, whose words follow: it skips all that the site prints before rsync begins there."""

_BEGIN = ("sh", "-c", 'echo RANKDECK-RSYNC 1; exec "$@"', "sh")


def argv(planned: PlannedNode, folder: str, reach: Reach) -> list[str]:
    """The command that copies a folder to a node, except files that `.gitignore` excludes.

    Files that exist only on the node stay: training may have written them.

    Args:
        planned: the node.
        folder: an absolute path, the same on both machines.
        reach: the user's settings for connections.

    Raises:
        ValueError: the node's name could be an option of ssh.
    """
    node = planned.name
    if planned.transport == "slurm":
        words = [*slurm.COMMAND, f"--jobid={reach.slurm_job}", "--nodelist"]  # rsync appends the node
    elif planned.transport == "pbs":
        words = [*pbs.COMMAND]
    else:
        remote_shell = ssh.argv(node, ["true"], reach)
        words = remote_shell[: remote_shell.index("--")]
    if planned.transport != "pbs":
        begin = _BEGIN if planned.transport == "slurm" else tuple(map(shlex.quote, _BEGIN))  # ssh starts a shell
        words = [sys.executable, "-I", "-c", SHELL, json.dumps(begin), *words]
    user, at, host = node.rpartition("@")
    target = f"{user}{at}[{host}]" if ":" in host else node
    return [
        "rsync",
        "--archive",
        "--protect-args",  # the node's shell does not expand the path
        f"--timeout={TIMEOUT}",
        "--exclude=/.git",
        "--filter=:- .gitignore",
        "--rsh",
        " ".join(map(_quoted, words)),
        "--",
        f"{folder.rstrip('/')}/",
        f"{target}:{folder.rstrip('/')}/",
    ]


def _quoted(word: str) -> str:
    """A word of `--rsh`, which rsync splits by itself: a quote inside quotes is doubled."""
    return "'" + word.replace("'", "''") + "'"
