"""Records failures for real: `python tests/data/failures/record.py [NAME…]` writes a file for each, beside this one.

No test runs it. It needs root, torch, mpi4py, OpenSSH, Open MPI 4 and MPICH; what is missing is said and left out. Host name,
folders and user of the machine are replaced.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = ROOT / ".venv" / "bin"

SECONDS = 120  # after which a recording is given up

HEADER = """\
import datetime, os, signal, sys, time
import torch
import torch.distributed as dist
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def init(seconds=60, backend="gloo"):
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
"""
"""Stands for the first line of a script."""


class Recording(NamedTuple):
    """A failure. `command` is one of a shell, in a folder that holds `train.py`."""

    command: str
    script: str = ""
    env: Mapping[str, str] = MappingProxyType({})


def recordings() -> dict[str, Recording]:
    """What `recordings.toml` lists."""
    text = (HERE / "recordings.toml").read_text(encoding="utf-8").replace("{ROOT}", str(ROOT))
    found = {name: Recording(**fields) for name, fields in tomllib.loads(text).items()}
    return {name: one._replace(script=re.sub(r"\AHEADER\n", HEADER, one.script)) for name, one in found.items()}


SSHD = """\
for key in host other third; do ssh-keygen -q -t ed25519 -N '' -C '' -f $key; done; mkdir -p /run/sshd
echo "[127.0.0.1]:2299 $(cut -d' ' -f1,2 host.pub)" > known
/usr/sbin/sshd -D -f /dev/null -p 2299 -h "$PWD/host" -o ListenAddress=127.0.0.1 -o PidFile=none -o PasswordAuthentication=no \
 -o KbdInteractiveAuthentication=no -o UsePAM=no {options} 2>/dev/null & sshd=$!; trap 'kill $sshd' EXIT
until ssh-keyscan -p 2299 127.0.0.1 2>/dev/null | grep -q .; do sleep 0.1; done
"""
OPTIONS = (
    "-F none -p 2299 -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=known -o IdentitiesOnly=yes"
    " -o GlobalKnownHostsFile=none"
)


def with_sshd(command: str) -> str:
    """The command with an sshd of its own, where it wants one."""

    def sshd(found: re.Match[str]) -> str:
        return SSHD.format(options=" ".join(f"-o {word}" for word in found[1].split()))

    return re.sub(r"^SSHD([^;]*);", sshd, command).replace("OPTIONS", OPTIONS)


def cleaned(text: str, folder: str) -> str:
    """What was printed, as on a machine of no name."""
    for old, new in (
        (folder, "/home/user"),
        (str(BIN.parent), "/home/user/env"),
        (str(ROOT), "/home/user/rankdeck"),
        (sys.base_prefix, "/usr"),
    ):
        text = text.replace(old, new)
    for host in (socket.getfqdn(), socket.gethostname()):
        text = re.sub(rf"\b{re.escape(host)}\b", "node1", text)
    return re.sub(r"\broot@", "user@", text)


def record(name: str, recording: Recording, say: Callable[[str], None]) -> None:
    """Writes one file."""
    with tempfile.TemporaryDirectory(prefix="rd") as folder:
        if recording.script:
            (Path(folder) / "train.py").write_text(recording.script)
        foreign = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
        env = {key: value for key, value in os.environ.items() if key not in foreign}
        env |= {"PATH": f"{BIN}:{env['PATH']}", "RANKDECK_HOME": f"{folder}/deck", "XDG_RUNTIME_DIR": folder}
        env |= {"PYTHONUNBUFFERED": "1", "TMPDIR": folder, "OMP_NUM_THREADS": "1", **recording.env}
        done = subprocess.run(
            ["bash", "-c", with_sshd(recording.command)],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        text = cleaned(done.stdout.decode(errors="replace"), folder)
        (HERE / f"{name}.txt").write_text(text)
        say(f"{name}: exit {done.returncode}, {len(text)} characters")


def main() -> None:
    """Records what is named, or everything."""
    known = recordings()
    for name in sys.argv[1:] or known:
        try:
            record(name, known[name], lambda line: print(line, flush=True))
        except subprocess.TimeoutExpired:
            print(f"{name}: not within {SECONDS} s", flush=True)


if __name__ == "__main__":
    main()
