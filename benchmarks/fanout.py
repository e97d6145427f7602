"""How soon agents are up on many nodes: over ssh beside pdsh, clush and mpirun, or in a Slurm job beside srun, on the same nodes in one run.

    python benchmarks/fanout.py [--slurm] [--nodes 4 16] [--repeat 5] [--json FILE]

The nodes are network namespaces of this machine, each with an sshd of its own; only root can make them. rankdeck's time is the
journal's: from the launch, when the links are opened, to the last agent that is connected. A peer's is that of its whole
command, with `true` and with a Python that does nothing, since an agent is a Python too. All nodes share the cores of one
machine, so that ratios say more than seconds; what as many Pythons, or agents, take on it without any ssh is in the table too.

With `--slurm`, each node has a slurmd of its own. rankdeck starts a step for each node; what one step on all nodes takes is in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.supervisor.nodes.bridge import agent_program, boot_command  # noqa: E402
from tests.cluster.namespaces import reason_to_skip  # noqa: E402
from tests.cluster.nodes import Cluster  # noqa: E402
from tests.slurm import lab  # noqa: E402
from tests.support import wait_until  # noqa: E402

FAN_OUT = 64  # connections that a peer may open at one time: as many as there are nodes

TRUE = ("true",)
PYTHON = (sys.executable, "-I", "-c", "pass")
LIMIT = 120.0  # seconds that anything here may take
Measured = dict[str, float]  # seconds by what was started


def seconds_of(argv: list[str], **variables: str) -> float:
    """Seconds of a command that must succeed."""
    began = time.perf_counter()
    environment = {**os.environ, **variables}
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{argv[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return time.perf_counter() - began


# --- the peers -------------------------------------------------------------------------------------------------------


def pdsh(cluster: Cluster, count: int, command: tuple[str, ...]) -> float:
    """`pdsh -R ssh`."""
    nodes = f"node[1-{count}]" if count > 1 else "node1"
    argv = [_program("pdsh"), "-R", "ssh", "-S", "-f", str(FAN_OUT), "-w", nodes, " ".join(command)]
    return seconds_of(argv, PDSH_SSH_ARGS_APPEND=" ".join(cluster.ssh_options))


def clush(cluster: Cluster, count: int, command: tuple[str, ...]) -> float:
    """ClusterShell's `clush`."""
    argv = [_program("clush"), "-S", "-f", str(FAN_OUT), "-o", " ".join(cluster.ssh_options), "-w", f"node[1-{count}]"]
    return seconds_of([*argv, " ".join(command)])


def mpirun(cluster: Cluster, count: int, command: tuple[str, ...]) -> float:
    """Open MPI's `mpirun`, one process on each node. It starts a daemon there first, as rankdeck does."""
    hosts = ",".join(node.name for node in cluster.nodes[:count])
    agent = " ".join(["ssh", *cluster.ssh_options])
    argv = [_program("mpirun"), "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--host", hosts]
    return seconds_of([*argv, "-np", str(count), *command])


PEERS: tuple[Callable[[Cluster, int, tuple[str, ...]], float], ...] = (pdsh, clush, mpirun)


def _program(name: str) -> str:
    """A program, perhaps beside this Python; empty where there is none."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or ""


# --- rankdeck --------------------------------------------------------------------------------------------------------


def rankdeck(layout: str, count: int, folder: Path) -> Measured:
    """A launch with one rank on each node: until the last agent was connected, from the command's start and by the journal.

    Args:
        layout: lines of the profile that name the nodes.
        count: of the nodes.
        folder: for its files.
    """
    script, profile, home = folder / "hello.py", folder / "fanout.toml", folder / "home"
    script.write_text("print('hello')\n")
    profile.write_text(
        f'schema = 1\nname = "fanout"\n[layout]\nranks_per_node = 1\n{layout}\n'
        f'[recipe]\nscript = "{script}"\n[launch]\nwarm = false\n'
    )
    command = [sys.executable, str(ROOT / "rankdeck_command.py")]
    began = time.time()
    seconds_of([*command, "launch", "--detach", str(profile)], RANKDECK_HOME=str(home))
    seconds_of([*command, "wait", "-"], RANKDECK_HOME=str(home))
    journal = next((home / "runs").glob("*/journal.jsonl"))
    events = [json.loads(line) for line in journal.read_bytes().splitlines()]
    connected = [event["at"] for event in events if event["event"] == "NodeConnected"]
    assert len(connected) == count, f"{len(connected)} of {count} agents were connected"
    return {"rankdeck": max(connected) - events[0]["at"], "rankdeck launch": max(connected) - began}


# --- figures ---------------------------------------------------------------------------------------------------------


def measure_slurm(slurm: lab.Slurm, count: int) -> Measured:
    """Everything that starts something on nodes of a Slurm job, once, one after the other."""
    options = ("--parsable", f"--nodes={count}", "--output=/dev/null", "--export=NONE")
    job = slurm.run("sbatch", *options, "--wrap", "exec sleep infinity")
    wait_until(lambda: slurm.state(job) == "RUNNING", what=f"job {job} runs")
    step = ["srun", f"--jobid={job}", "--overlap", "--mem=0", "--mpi=none", "--chdir=/"]
    each = [[*step, "--nodes=1", "--ntasks=1", f"--nodelist={name}", "hostname"] for name in slurm.names[:count]]
    every = [*step, f"--nodes={count}", f"--ntasks={count}"]
    try:
        with tempfile.TemporaryDirectory(prefix="rd") as folder:
            found = rankdeck(f"slurm = {job}", count, Path(folder))
        found["one srun: hostname"] = seconds_of([*every, "hostname"])
        found["one srun: python"] = seconds_of([*every, *PYTHON])
        found["srun each: hostname"] = seconds_at_once(each, b"")
    finally:
        slurm.cancel_everything()
    return found | measure_here(count)


def measure_here(count: int) -> Measured:
    """What as many processes as there are nodes take here, one beside the other."""
    return {
        "Pythons, no nodes": seconds_at_once([PYTHON] * count, b""),
        "agents, no nodes": seconds_at_once([boot_command(sys.executable)] * count, agent_program()),
    }


def measure_ssh(cluster: Cluster, count: int) -> Measured:
    """Everything that uses ssh once, one after the other."""
    options = json.dumps(cluster.ssh_options)
    with tempfile.TemporaryDirectory(prefix="rd") as folder:
        found = rankdeck(f'nodes = "node[1-{count}]"\nssh_options = {options}', count, Path(folder))
    for peer in PEERS:
        if _program(peer.__name__):
            found[f"{peer.__name__} true"] = peer(cluster, count, TRUE)
            found[f"{peer.__name__} python"] = peer(cluster, count, PYTHON)
    return found | measure_here(count)


def seconds_at_once(commands: Sequence[Sequence[str]], data: bytes) -> float:
    """Seconds of processes that are started here at one time, each with the same input."""
    began = time.perf_counter()
    started = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for argv in commands
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.close()
    for process in started:
        assert process.stdout is not None
        with process.stdout:
            process.stdout.read()
        if process.wait() and not data:  # an agent whose input ends tells so by its status
            raise SystemExit(f"a process ended with {process.returncode}: {commands[0]}")
    return time.perf_counter() - began


def table(medians: Measured) -> str:
    """The figures of one size for people, and how far rankdeck is from the fastest peer."""
    ours = medians["rankdeck"]
    lines = [
        f"  {name:20} {seconds:7.3f} s   {seconds / ours:5.2f} times rankdeck's" for name, seconds in medians.items()
    ]
    if peers := [seconds for name, seconds in medians.items() if name.endswith(" true")]:
        allowed = min(peers) + medians["Pythons, no nodes"]
        lines.append(f"  rankdeck takes {ours / allowed:.2f} times the fastest peer and a Python on each node together")
    return "\n".join(lines)


def main() -> None:
    """Prints a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--slurm", action="store_true", help="nodes of a Slurm job, which only srun reaches")
    parser.add_argument("--json", type=Path, help="also writes the medians there")
    options = parser.parse_args()
    if reason := lab.reason_to_skip() if options.slurm else reason_to_skip():
        print(f"nothing was measured: {reason}")
        return
    found: dict[int, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="rd") as folder, contextlib.ExitStack() as stack:
        os.environ["XDG_RUNTIME_DIR"] = folder
        if options.slurm:
            slurm = stack.enter_context(lab.Slurm(count=max(options.nodes)))
            os.environ.update(slurm.environment)
            once = partial(measure_slurm, slurm)
        else:
            for peer in PEERS:
                if not _program(peer.__name__):
                    print(f"there is no {peer.__name__}: it is left out")
            once = partial(measure_ssh, stack.enter_context(Cluster(Path(folder) / "c", count=max(options.nodes))))
        for count in options.nodes:
            runs = [once(count) for _ in range(options.repeat)]
            found[count] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            print(f"{count} nodes, median of {options.repeat}")
            print(table(found[count]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
