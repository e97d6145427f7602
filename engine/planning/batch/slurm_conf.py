"""Slurm's configuration on this machine: which cluster commands ask here, and whether users come to this machine to submit jobs. Reads files and
ports; asks no controller."""

import contextlib
import os
import re
import socket
from pathlib import Path

from engine.core.plan.batch.slurm import INCLUDE, may_be_node, slurmd_port
from engine.gate import which
from engine.linux.files import read_file

_CLUSTER = re.compile(r"(?im)^\s*ClusterName\s*=\s*([^\s#]+)")
_CONFIGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where a login node has Slurm's configuration: two packagings, and what sackd or slurmd has got from the controller."""


def cluster_name() -> str:
    """The cluster that commands ask here, from files; without any, this host's name, because a home may be shared by several clusters."""
    named = os.environ.get("SLURM_CLUSTERS", "")
    with contextlib.suppress(OSError):
        named = named or ",".join(_CLUSTER.findall(_config())[:1])
    return re.sub(r"[^\w.,-]", "_", named) or socket.gethostname()


def _config() -> str:
    """The text of slurm.conf with the files that it includes. Raises OSError: there is none, or it can't be read."""
    beside: list[str] = []
    if (sbatch := which("sbatch")) is not None:
        beside = [str(Path(sbatch).resolve().parents[1] / "etc" / name) for name in ("slurm.conf", "slurm/slurm.conf")]
    paths = [os.environ["SLURM_CONF"]] if "SLURM_CONF" in os.environ else [*_CONFIGS, *beside]
    path = next(filter(os.path.isfile, paths), paths[0])
    conf = _text(path)
    return "\n".join([conf, *(_text(os.path.join(os.path.dirname(path), name)) for name in INCLUDE.findall(conf))])


def is_login_node() -> bool:
    """Whether users come to this machine to submit jobs: it has Slurm's commands and its configuration, and starts no jobs itself.
    Where the files leave it open, the answer is False."""
    if which("sbatch") is None:
        return False
    try:
        whole, name = _config(), socket.gethostname()
        hosts = {name, name.partition(".")[0], "localhost", "127.0.0.1"}
        return not may_be_node(whole, hosts) and not _listens(slurmd_port(whole))
    except OSError:
        return False


def _text(path: str) -> str:
    return read_file(os.path.realpath(path)).decode(errors="replace")


def _listens(port: int) -> bool:
    """Whether a process of this machine listens on a TCP port. Other users may hide their processes, but not their ports."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6") if os.path.exists(f"/proc/net/{name}")]
    return any(
        line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        for table in tables
        for line in table.splitlines()[1:]
    )
