"""Whether runs survive random faults of every process and of the links between nodes, while they start, train, rejoin and stop.

A small model trains with DDP. Processes are killed, stopped for a while, or stopped for good, one or two at a time; links to nodes
break. After each fault every rank must finish a step that is further than any before, and nobody types a command. The parameters
after every step must equal those of an undisturbed training, bit by bit, and no process may be left.

The ranks keep their state and rejoin (`rankdeck.elastic`). Over mpi they rejoin over gloo, whose sums have the same bits with two ranks
only.
A rank is stopped for a while only: what a user's process does for ever is not ours to end.

Two processes of ours that are hurt within one recovery may leave a run without whoever brings them back. Such a run goes on, and the next
command mends it; what needs a command after that is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.nodes import Cluster  # noqa: E402
from tests.slurm.lab import Slurm  # noqa: E402
from tests.support import LIGHT, Deck, Process, is_alive, kill_hard, process_state  # noqa: E402

SCRIPT = """
import os, sys, time, torch, rankdeck
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
folder, rank = sys.argv[1], os.environ["RANK"]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
state = rankdeck.elastic.State(step=0, model=model, optimizer=torch.optim.AdamW(model.parameters()))
saved = os.path.join(folder, "checkpoint.pt")
if os.path.exists(saved):
    found = torch.load(saved)
    state.step = found["step"]
    model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
steps = open(os.path.join(folder, "steps-" + rank), "a", buffering=1)

def last_step():
    # Rank 0 reads where to end, so that all ranks end at the same step.
    end = torch.full((1,), -1, dtype=torch.int64)
    if rank == "0" and os.path.exists(os.path.join(folder, "finish")):
        end[0] = int(open(os.path.join(folder, "finish")).read() or -1)
    dist.broadcast(end, 0)
    return int(end)

def digest():
    # Changes with every bit of every parameter.
    total = torch.zeros((), dtype=torch.int64)
    for value in model.parameters():
        bits = value.detach().flatten().view(torch.int32).to(torch.int64)
        total = total * 1000003 + (bits * torch.arange(1, 2 * len(bits), 2)).sum()
    return int(total)

@rankdeck.elastic.run(state)
def train():
    ddp = DDP(state.model)
    ddp(torch.zeros(1, 32)).sum().backward()  # DDP regroups gradients after its first pass, and that rounds otherwise
    end = last_step()
    while end < 0 or state.step < end:
        torch.manual_seed(1000 * state.step + int(rank))
        state.optimizer.zero_grad()
        ddp(torch.randn(8, 32)).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        rankdeck.log(step=state.step)
        if state.step % 20 == 0 and rank == "0":
            torch.save({"step": state.step, "model": model.state_dict(), "optimizer": state.optimizer.state_dict()}, saved + ".new")
            os.rename(saved + ".new", saved)
        steps.write(f"{state.step} {os.getpid()} {digest()}\\n")
        time.sleep(0.01)
        end = last_step()

train()
"""

PROFILE = """
schema = 1
name = "soak"
[backend]
name = "{backend}"
[layout]
{layout}
[recipe]
script = "{script}"
args = ["{folder}"]
[env]
PYTHONPATH = "{light}"
[launch]
on_failure = "restart"
max_restarts = 1000000
"""

LIMIT = 180.0  # seconds within which a run trains again after a fault; then a command is typed, and counted
SLOW = 60.0  # seconds after which the files of a run are kept, although it trains again

LEAVING_LIMIT = 120.0
"""Seconds within which a process that was stopped for good is replaced, and within which the processes of an ended run are gone."""

FAULTS_OF_RUN = 12  # faults after which a run ends and the next one starts

OURS = ("supervisor", "guard", "agent", "warden", "bridge", "template", "store")
"""Processes that rankdeck replaces when they are stopped for good."""

SHORTEST_RECOVERY = 5.0
"""Seconds after a fault in which a second one of ours counts as within the recovery of the first, whatever is seen of it."""

TITLE = re.compile("rankdeck: (user-template|guard|agent|warden|bridge|template|store) ")

Say = Callable[[str], None]


class Soak:
    """One run after the other, their processes, and what they have done.

    Args:
        folder: for the home and the script's files.
        backend: gloo or mpi.
        ranks: how many on each node.
        cluster: its nodes, or the Slurm to which runs are submitted; None: all ranks are on this machine.
    """

    def __init__(self, folder: Path, backend: str, ranks: int, cluster: Cluster | Slurm | None = None) -> None:
        self.base, self.slurm = folder, cluster if isinstance(cluster, Slurm) else None
        self.cluster = cluster if isinstance(cluster, Cluster) else None
        count, where = 1, f'nodes = "localhost"\nranks_per_node = {ranks}'
        if self.cluster:
            count, options = len(self.cluster.nodes), json.dumps(self.cluster.ssh_options)
            where = f'nodes = "node[1-{count}]"\nranks_per_node = {ranks}\nssh_options = {options}'
        elif self.slurm:
            count = len(self.slurm.names)
            where = f"slurm = {{ nodes = {count}, ranks_per_node = {ranks} }}"
            os.environ.update(self.slurm.environment)
        self.world, self._settings = ranks * count, {"backend": backend, "layout": where}
        os.environ.update(RANKDECK_HOME=str(folder / "home"), XDG_RUNTIME_DIR=str(folder / "r"), RANKDECK_LINGER="300")
        (folder / "r").mkdir(mode=0o700)
        self.deck = Deck(folder / "home")
        self.folder, self.run, self._count = folder, "", 0

    def launch(self, end: int | None = None) -> None:
        """Launches the next run.

        Args:
            end: the step after which it ends; None: it trains until `finish`.
        """
        self._count += 1
        self.folder = self.base / f"run{self._count}"
        self.folder.mkdir()
        (self.folder / "train.py").write_text(SCRIPT)
        text = PROFILE.format(**self._settings, script=self.folder / "train.py", folder=self.folder, light=LIGHT)
        (self.folder / "soak.toml").write_text(text)
        if end is not None:
            (self.folder / "finish").write_text(str(end))
        self.run = self.deck.launch(self.folder / "soak.toml")

    # what it has done

    def steps(self, rank: int) -> list[tuple[int, int, str]]:
        """The steps that a rank has finished, in order: their number, the process, and a digest of the parameters."""
        path = self.folder / f"steps-{rank}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        found = [re.fullmatch(r"(\d+) (\d+) (-?\d+)", line) for line in lines]
        return [(int(match[1]), int(match[2]), match[3]) for match in found if match]

    def last(self, rank: int) -> int:
        """The newest step of a rank; 0 before the first."""
        return next((step for step, _, _ in reversed(self.steps(rank))), 0)

    def furthest(self) -> int:
        """The highest step of any rank."""
        return max(self.last(rank) for rank in range(self.world))

    def are_beyond(self, step: int) -> bool:
        """Whether every rank has finished a step after this one."""
        return all(self.last(rank) > step for rank in range(self.world))

    def repeated(self) -> int:
        """Steps that were done more than once, because their result was lost."""
        done = [[step for step, _, _ in self.steps(rank)] for rank in range(self.world)]
        return max(len(steps) - len(set(steps)) for steps in done)

    # its processes

    def processes(self) -> list[Process]:
        """Every process of ours, here and on nodes."""
        nodes = self.cluster or self.slurm
        on_nodes = nodes.processes() if nodes else {}
        return self.deck.processes() + [one for found in on_nodes.values() for one in found]

    def victims(self) -> dict[str, list[int]]:
        """The processes of the run that live now, by what they are."""
        found: dict[str, list[int]] = defaultdict(list)
        with contextlib.suppress(OSError, ValueError, KeyError):
            found["supervisor"].append(self.deck.supervisor(self.run))
        ranks = {steps[-1][1] for rank in range(self.world) if (steps := self.steps(rank))}
        for pid, command in self.processes():
            if pid in ranks or "train.py" in command:
                found["rank"].append(pid)
            elif title := TITLE.match(command):
                found[title[1]].append(pid)
            elif re.match(r"\S*ssh ", command):
                found["ssh"].append(pid)
            elif re.match(r"\S*(mpirun|mpiexec|orterun|prterun)", command):
                found["mpirun"].append(pid)
        living = {kind: [pid for pid in pids if pid > 1 and is_alive(pid)] for kind, pids in found.items()}
        return {kind: pids for kind, pids in living.items() if pids}

    # how it ends

    def finish(self) -> int:
        """Asks the run to end. Returns its last step."""
        step = self.furthest() + 30
        (self.folder / "finish.new").write_text(str(step))
        (self.folder / "finish.new").rename(self.folder / "finish")
        return step

    def state(self) -> str:
        """The state of the run, as its files say. Starts no supervisor, as a command would."""
        ends = ("succeeded", "failed", "stopped")
        with contextlib.suppress(OSError, ValueError):
            if not (self.deck.folder(self.run) / "supervisor.json").exists():
                summary = json.loads((self.deck.folder(self.run) / "summary.json").read_bytes())
                return next((word for word in ends if f'"{word}"' in json.dumps(summary)), "")
        return ""

    def wait_left(self) -> list[Process]:
        """Waits until no process is left but the template of the user, which stays for the next run. Returns those that are, with that."""
        self.deck("clean", "--template")
        wait(lambda: not self.processes(), LEAVING_LIMIT)
        return self.processes()


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition is met within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Faults:
    """Makes random faults, and undoes those that are for a while.

    Args:
        soak: what they happen to.
        dice: chooses them.
    """

    def __init__(self, soak: Soak, dice: random.Random) -> None:
        self._soak, self._dice = soak, dice
        self.frozen: dict[int, str] = {}
        """Processes that were stopped for good, with what they are."""
        self.began = 0.0
        """When the newest fault began."""
        self.had_pair = False
        """Whether a second process of ours was hurt before the first was back."""
        self._hurt: tuple[str, int, float] | None = None
        """Kind, pid and time of the newest fault of a process of ours."""
        self._timers: list[threading.Timer] = []

    def hurt(self, among: tuple[str, ...] = ()) -> str:
        """One fault. Returns what it was.

        Args:
            among: kinds of processes; empty: any, and links.
        """
        dice, cluster = self._dice, self._soak.cluster
        if cluster and not among and dice.random() < 0.2:
            return self._break_link(cluster)
        victims = self._soak.victims()
        kinds = sorted(set(victims).intersection(among) if among else victims)
        if not kinds:
            return "nothing"
        kind = dice.choice(kinds)
        pid = dice.choice(victims[kind])
        way, self.began = dice.random(), time.monotonic()
        if kind in OURS:
            self.had_pair = self.had_pair or self._is_recovering(victims)
            self._hurt = (kind, pid, self.began)
        with contextlib.suppress(ProcessLookupError):
            if way < 0.7:
                os.kill(pid, signal.SIGKILL)
                return f"{kind} killed"
            os.kill(pid, signal.SIGSTOP)
            if way < 0.85 or kind not in OURS:
                self._later(dice.uniform(0.3, 6.0), lambda: os.kill(pid, signal.SIGCONT))
                return f"{kind} paused"
            self.frozen[pid] = kind
            return f"{kind} stopped"
        return "nothing"

    def _is_recovering(self, victims: dict[str, list[int]]) -> bool:
        """Whether the process of ours that was hurt last is not back yet. A store comes back with the next attempt only."""
        if self._hurt is None:
            return False
        kind, pid, at = self._hurt
        is_back = process_state(pid) != "T" and (kind == "store" or bool(victims.get(kind)))
        return not is_back or time.monotonic() - at < SHORTEST_RECOVERY

    def _break_link(self, cluster: Cluster) -> str:
        node, seconds = self._dice.choice(cluster.nodes), self._dice.uniform(0.5, 20.0)
        self.began = time.monotonic()
        match self._dice.choice(("cut", "refused", "ended")):
            case "cut":
                node.cut()
                self._later(seconds, node.mend)
                return "link cut"
            case "refused":
                node.stop_sshd()
                node.kill_sessions()
                self._later(seconds, node.start_sshd)
                return "sshd down"
            case _:
                node.kill_sessions()
                return "link ended"

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            with contextlib.suppress(ProcessLookupError):
                action()

        self._timers.append(threading.Timer(seconds, act))
        self._timers[-1].start()

    def settle(self) -> list[str]:
        """Waits until links are back, and stopped processes were replaced. Returns those that were not, which are killed."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()

        def left() -> list[int]:
            return [pid for pid in self.frozen if process_state(pid) == "T"]

        wait(lambda: not left(), LEAVING_LIMIT)
        kept = [self.frozen[pid] for pid in left()]
        for pid in left():
            kill_hard(pid)
        self.frozen.clear()
        return kept


class Tally:
    """What has been seen so far."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.faults = Counter[str]()
        self.seconds: list[float] = []
        self.by_kind: dict[str, list[float]] = defaultdict(list)
        self.commands = self.after_pairs = self.repeated = self.wrong = 0
        self.not_replaced = Counter[str]()
        self.left: list[str] = []
        self.digests: dict[int, set[str]] = defaultdict(set)

    def note(self, phase: str, kinds: list[str], seconds: float) -> None:
        """Takes one recovery."""
        self.faults.update(kinds)
        self.seconds.append(seconds)
        for kind in kinds:
            self.by_kind[kind].append(seconds)
        self.say(f"{sum(self.faults.values())} {phase}: {' and '.join(kinds)}: {seconds:.1f} s")

    def note_command(self, *, after_pair: bool) -> None:
        """Counts a command without which a run does not go on."""
        if after_pair:
            self.after_pairs += 1
        else:
            self.commands += 1

    def report(self) -> dict[str, object]:
        """Everything, for JSON."""
        return {
            "faults": sum(self.faults.values()),
            "commands": self.commands,
            "commands_after_pairs": self.after_pairs,
            "wrong_ends": self.wrong,
            "not_replaced": dict(self.not_replaced),
            "steps_lost": self.repeated,
            "seconds_to_next_step": figures(self.seconds),
            "by_fault": {kind: figures(seconds) for kind, seconds in sorted(self.by_kind.items())},
            "processes_left": self.left,
        }


def figures(seconds: list[float]) -> dict[str, float]:
    """Count, median, 95th percentile and maximum."""
    ordered = sorted(seconds) or [0.0]
    values = {
        "median": statistics.median(ordered),
        "p95": ordered[round(0.95 * (len(ordered) - 1))],
        "max": ordered[-1],
    }
    return {"count": len(seconds), **{name: round(value, 1) for name, value in values.items()}}


def shake(soak: Soak, tally: Tally, dice: random.Random, kills: int, evidence: Path) -> None:
    """One run: faults while it starts, trains, rejoins and ends.

    Args:
        soak: what it happens to.
        tally: of all runs.
        dice: chooses.
        kills: how many faults at least.
        evidence: a folder that takes the files of a run that did not do as it should.
    """
    faults, wanted = Faults(soak, dice), sum(tally.faults.values()) + kills

    def recover(phase: str, kinds: list[str], began: float) -> None:
        before = soak.furthest() + 1  # ranks are one step apart at most: one that was hurt has got no further than this
        wait(lambda: soak.are_beyond(before) or soak.state() != "", LIMIT)
        if soak.state():
            tally.wrong += 1
            keep(soak, evidence)
            tally.say(f"{soak.run} has ended ({soak.state()}) after {kinds}")
        elif not soak.are_beyond(before):
            tally.note_command(after_pair=faults.had_pair)
            keep(soak, evidence)
            tally.say(f"no step within {LIMIT:g} s after {kinds}; {soak.run}: {soak.deck('status', soak.run).stdout}")
            if not wait(lambda: soak.are_beyond(before), LIMIT):
                raise SystemExit(f"{soak.run} does not train again after {kinds}")
        if time.monotonic() - began > SLOW:
            keep(soak, evidence)
        tally.note(phase, kinds, time.monotonic() - began)

    soak.launch()
    time.sleep(dice.uniform(0.0, 5.0))
    # No link: a node that refuses its first connection ends a launch, as it should.
    recover("start", [faults.hurt((*OURS, "rank", "mpirun"))], faults.began)
    while sum(tally.faults.values()) < wanted - 1 and not soak.state():
        time.sleep(dice.uniform(0.0, 1.5))
        if dice.random() < 0.25:
            phase, kinds = "rejoin", [faults.hurt(("rank",))]
            began = faults.began
            time.sleep(dice.uniform(0.0, 2.0))
            kinds.append(faults.hurt())
        else:
            phase, kinds = "training", [faults.hurt()]
            began = faults.began
            if dice.random() < 0.2:
                kinds.append(faults.hurt())
        recover(phase, kinds, began)
    if not soak.state():
        end(soak, tally, faults, dice, evidence)
    look_back(soak, tally, faults, evidence)


def end(soak: Soak, tally: Tally, faults: Faults, dice: random.Random, evidence: Path) -> None:
    """Lets a run finish, or stops it, with a fault meanwhile."""
    wanted, step = ("succeeded", soak.finish()) if dice.random() < 0.6 else ("stopped", 0)
    if not step:
        soak.deck("stop", soak.run)
    time.sleep(dice.uniform(0.0, 1.0))
    kinds, began = [faults.hurt()], time.monotonic()
    if not wait(lambda: soak.state() != "", LIMIT):
        tally.note_command(after_pair=faults.had_pair)
        keep(soak, evidence)
        tally.say(f"no end within {LIMIT:g} s after {kinds}; {soak.run}: {soak.deck('status', soak.run).stdout}")
        wait(lambda: soak.state() != "", LIMIT)
    tally.note("stop" if not step else "finish", kinds, time.monotonic() - began)
    if soak.state() != wanted or (step and any(soak.last(rank) != step for rank in range(soak.world))):
        tally.wrong += 1
        keep(soak, evidence)
        tally.say(f"{soak.run} is {soak.state()!r}, not {wanted!r}, after {kinds}")


def look_back(soak: Soak, tally: Tally, faults: Faults, evidence: Path) -> None:
    """Looks at what a run has left: processes, and its steps."""
    for kind in faults.settle():
        if faults.had_pair:
            continue  # who would have replaced it was hurt too
        tally.not_replaced[kind] += 1
        keep(soak, evidence)
        tally.say(f"{soak.run}: nothing has replaced a stopped {kind}")
    if left := soak.wait_left():
        keep(soak, evidence)
        tally.left += [one.command[:200] for one in left]
        tally.say(f"{soak.run}: left are {left}")
        for one in left:
            kill_hard(one.pid)
    tally.repeated += soak.repeated()
    for rank in range(soak.world):
        for number, _, digest in soak.steps(rank):
            tally.digests[number].add(digest)


def stop_often(soak: Soak, tally: Tally, dice: random.Random, stops: int) -> None:
    """Stops one run again and again, at any moment, and resumes it. Counts steps that were done twice, and torn checkpoints that are said."""
    soak.launch()
    for _ in range(stops):
        began = time.monotonic()
        if dice.random() < 0.7:  # else it may stop while it starts
            wait(partial(soak.are_beyond, soak.furthest()), LIMIT)
        time.sleep(dice.uniform(0, 2))
        way = dice.choice(["stop", *WAYS]) if soak.slurm else "stop"
        if soak.slurm and way != "stop":
            known = json.loads((soak.deck.folder(soak.run) / "job.json").read_text())
            job = known["next"] or known["job"]
            wait(partial(lambda slurm, job: slurm.state(job) == "RUNNING", soak.slurm, job), LIMIT)
            soak.slurm.run(*(word.format(job=job) for word in WAYS[way]))
            if not wait(lambda: soak.deck.status(soak.run)["state"] == "failed", SLURM_LIMIT):
                tally.say(f"no {way} within {SLURM_LIMIT:g} s")
                soak.slurm.run("scancel", "--user=root")
                wait(lambda: soak.deck.status(soak.run)["state"] == "failed", LIMIT)
        else:
            soak.deck("stop", soak.run, seconds=LIMIT)
        status = soak.deck.status(soak.run)
        restarted = soak.deck("restart", soak.run, seconds=LIMIT)
        if status["state"] not in ("stopped", "failed") or restarted.returncode:
            tally.wrong += 1
            tally.say(f"{status['state']} {restarted.stderr}")
        tally.note("stop", [way], time.monotonic() - began)
        tally.say(f"{way}: {status['saved']['words'] if status['saved'] else 'nothing'}")
    wait(partial(soak.are_beyond, soak.furthest()), LIMIT)
    soak.finish()
    soak.deck.wait_state(soak.run, "succeeded", seconds=600)
    tally.repeated += soak.repeated()
    for rank in range(soak.world):
        for step, _, digest in soak.steps(rank):
            tally.digests[step].add(digest)
    tally.left += [f"{one.command} ({one.pid})" for one in soak.wait_left()]


SLURM_LIMIT = 60.0
"""Seconds within which Slurm ends a job; else it is cancelled."""

WAYS = {
    "scancel": ("scancel", "{job}"),
    "time limit": ("scontrol", "update", "jobid={job}", "endtime=now+2"),
    "preemption": ("sbatch", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 1"),
}
"""How Slurm ends a job."""


def keep(soak: Soak, evidence: Path) -> None:
    """Copies the files of a run, for whoever looks for the cause."""
    shutil.copytree(soak.deck.folder(soak.run), evidence / soak.run, dirs_exist_ok=True, ignore=_pipes)


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


def are_right(tally: Tally, folder: Path, backend: str, ranks: int) -> bool:
    """Whether every step has given the same parameters as in a training without a fault."""
    soak = Soak(folder, backend, ranks)
    soak.launch(end=max(tally.digests))
    soak.deck.wait_state(soak.run, "succeeded", seconds=600)
    right = {step: {digest} for step, _, digest in soak.steps(0)}
    return all(right[step] == found for step, found in tally.digests.items())


@contextlib.contextmanager
def nodes(count: int, folder: Path, *, slurm: bool) -> Iterator[Cluster | Slurm | None]:
    """A cluster of so many nodes; None for this machine alone. `slurm`: whether Slurm runs it."""
    if slurm:
        with Slurm(count=2) as found:
            yield found
        return
    if count == 1:
        yield None
        return
    with Cluster(folder / "c", count=count) as cluster:
        yield cluster


def main() -> None:
    """Prints what was survived, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=0, help="stop and resume one run so often, in place of faults")
    parser.add_argument("--ranks", type=int, default=2, help="on each node")
    parser.add_argument(
        "--nodes", type=int, default=1, help="network namespaces with an sshd each, if not 1; needs root"
    )
    parser.add_argument("--slurm", action="store_true", help="with --stops: submit the run to a Slurm of two nodes")
    parser.add_argument("--backend", choices=("gloo", "mpi"), default="gloo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evidence", type=Path, help="takes the files of runs that did not do as they should")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ["OMP_NUM_THREADS"] = "1"
    tally, dice = Tally(lambda line: print(line, file=sys.stderr, flush=True)), random.Random(options.seed)
    with contextlib.ExitStack() as stack:
        first, second, third = (Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak"))) for _ in range(3))
        soak = Soak(
            first, options.backend, options.ranks, stack.enter_context(nodes(options.nodes, third, slurm=options.slurm))
        )
        try:
            if options.stops:
                stop_often(soak, tally, dice, options.stops)
            while not options.stops and (left := options.kills - sum(tally.faults.values())) > 0:
                shake(soak, tally, dice, min(left, FAULTS_OF_RUN), options.evidence or second)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                soak.deck.stop_everything()
            print(json.dumps(tally.report(), indent=1), flush=True)
        (second / "undisturbed").mkdir()
        is_right = are_right(tally, second / "undisturbed", options.backend, soak.world)
        print(json.dumps({"bit_identical": is_right}))
    if not is_right or tally.commands or tally.wrong or tally.not_replaced or tally.left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
