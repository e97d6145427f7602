"""Findings about one node that do not depend on the job, and how many ranks it has room for."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.core.checks.findings import Finding, Login, Machine, State, fail, ok, skip, warn
from engine.core.numbers import size_words
from engine.core.plan.environment import INTERFACE_NAMES, backends_in, is_meant
from engine.core.plan.needs import lack_of
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.words import count

FILES_OF_AGENT, FILES_PER_OWN_RANK = 64, 3
"""Files that an agent keeps open: some for itself, and the three of each of its ranks."""

THREADS_PER_RANK = 4  # processes and threads that a rank has at least: the main thread, and those of gloo and torch


class Capacity(NamedTuple):
    """The number of ranks that a node has room for, and what limits it."""

    ranks: int
    limit: str
    hint: str

    def words(self, ranks: int) -> str:
        """`room for 320 ranks, not 512: at most 1024 open files`. `ranks`: that are wanted."""
        return f"room for {count(self.ranks, 'rank')}, not {ranks}: {self.limit}"


def rank_capacity(open_files: int | None, processes: int | None) -> Capacity | None:
    """The room on a node, from the files that an agent may open and the processes that the user may start; None: no limit is known."""
    limits = []
    if open_files is not None:
        fit = max(0, open_files - FILES_OF_AGENT) // FILES_PER_OWN_RANK
        hint = "set a higher hard limit of open files (nofile) in /etc/security/limits.conf"
        limits.append(Capacity(fit, f"at most {open_files} open files", hint))
    if processes is not None:
        limit = f"at most {processes} more processes and threads, and a rank needs {THREADS_PER_RANK}"
        hint = "request more from the scheduler, or raise nproc in /etc/security/limits.conf or TasksMax of systemd"
        limits.append(Capacity(processes // THREADS_PER_RANK, limit, hint))
    return min(limits, default=None)


SKEW_TO_WARN = 1.0  # Seconds. If clocks differ by more, the logs of several nodes can't be put in order.
SKEW_TO_FAIL = 300.0  # Seconds. Kerberos, and file servers that use it, refuse machines whose clocks differ by more.
LOW_LOCKED = 1 << 30  # bytes of locked memory: InfiniBand can't create its queues with the usual 8 MiB
LOW_MEMORY = 1 << 29  # bytes for each rank: importing torch takes half of it
LOW_ADDRESS_SPACE = 1 << 34  # Bytes of a process. torch reserves several GB, and CUDA much more.
LOW_FILE_SIZE = 1 << 30  # Bytes of a file. Checkpoints are often larger.

FILES_PER_PEER, FILES_PER_RANK = 4, 100
"""Open files of a rank: connections to each other rank for a few process groups, and files that Python and torch open."""


LINGER = "loginctl enable-linger"

STATES: tuple[State, ...] = ("fail", "warn", "ok", "skip")  # most severe first


def worst(findings: Iterable[Finding]) -> Finding:
    """The most severe finding; of equal ones the first."""
    return min(findings, key=lambda found: STATES.index(found.state))


# --- the node itself -----------------------------------------------------------------------------------------------------


def reach_finding(node: PlannedNode, seconds: float) -> Finding:
    """A node whose probe has answered, `seconds` after the start of the command."""
    return ok(node.name, "ssh", "this machine" if node.transport == "local" else f"answered after {seconds:.1f} s")


def clock_finding(node: str, ahead: float, uncertain: float) -> Finding:
    """The difference between a node's clock and this machine's. `ahead`: seconds that its clock is ahead. `uncertain`: possible error in
    seconds, from the time that the answer took."""
    surely = max(0.0, abs(ahead) - uncertain)
    if not surely:
        return ok(node, "clock", "as this machine's")
    text = f"{_seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    if surely <= SKEW_TO_WARN:
        return ok(node, "clock", text)
    return (fail if surely > SKEW_TO_FAIL else warn)(node, "clock", text, "synchronise it with chrony or ntpd")


def machine_findings(plan: LaunchPlan, node: PlannedNode, machine: Machine) -> list[Finding]:
    """Findings that do not need the job's files."""
    python = ok(node.name, "python", f"{machine.python}, {machine.executable}, {machine.architecture}")
    if lack := lack_of(plan, python=machine.python):
        python = fail(node.name, "python", f"{machine.executable}: {lack.fact}", lack.hint)
    return [
        python,
        _environment(plan, node),
        _gpus(plan, node, machine.gpus),
        _cores(plan, node, machine),
        _limits(plan, node, machine),
        login_finding(node, machine.ends_with),
        _leftovers(node.name, machine),
        *_interface(plan, node.name, machine),
    ]


def _environment(plan: LaunchPlan, node: PlannedNode) -> Finding:
    """Warnings about variables are the same for all nodes, so only the first one has them."""
    if not plan.warnings:
        return ok(
            node.name, "env", f"{count(len(plan.env), 'variable')} of the profile" if plan.env else "nothing is set"
        )
    if node != plan.nodes[0]:
        return skip(node.name, "env", f"see {plan.nodes[0].name}")
    text = "; ".join(warning.fact for warning in plan.warnings)
    hint = "; ".join(f"{warning.name}: {warning.hint}" for warning in plan.warnings)
    return warn(node.name, "env", text, hint if len(plan.warnings) > 1 else plan.warnings[0].hint)


def _gpus(plan: LaunchPlan, node: PlannedNode, gpus: int) -> Finding:
    if plan.backend.device == "cpu":
        return skip(node.name, "gpus", "ranks compute on the CPU")
    text = f"{count(gpus, 'GPU')} for {count(len(node.ranks), 'rank')}"
    if len(node.ranks) > gpus:
        hint = "each rank needs its own GPU: give the node fewer ranks, or remove it"
        return fail(node.name, "gpus", text, hint)
    return ok(node.name, "gpus", text)


def _cores(plan: LaunchPlan, node: PlannedNode, machine: Machine) -> Finding:
    """The CPUs that each rank is bound to."""
    if machine.cpus_trouble:
        hint = "give the node fewer ranks, get more cores, or set layout.bind to numa or none"
        return fail(node.name, "cores", machine.cpus_trouble, hint)
    if plan.layout.bind == "none" or not machine.cpus:
        return ok(node.name, "cores", f"{count(machine.cores, 'CPU')} for {count(len(node.ranks), 'rank')}, not bound")
    bound = (f"rank {rank} on {cpus}" for rank, cpus in zip(node.ranks, machine.cpus, strict=False))
    return ok(node.name, "cores", f"{plan.layout.bind}: {', '.join(bound)}")


def _limits(plan: LaunchPlan, node: PlannedNode, machine: Machine) -> Finding:
    room = rank_capacity(machine.open_files, machine.processes)
    if room is not None and room.ranks < len(node.ranks):
        return fail(node.name, "limits", room.words(len(node.ranks)), room.hint)
    files = FILES_PER_RANK + FILES_PER_PEER * plan.world_size
    if machine.open_files is not None and machine.open_files < files:
        text = f"at most {machine.open_files} open files; {plan.world_size} ranks may need {files}"
        hint = "set a higher hard limit of open files (nofile) in /etc/security/limits.conf"
        return warn(node.name, "limits", text, hint)
    if machine.has_infiniband and machine.locked_memory is not None and machine.locked_memory < LOW_LOCKED:
        text = f"only {size_words(machine.locked_memory)} of memory can be locked; InfiniBand needs more"
        hint = "set memlock to unlimited in /etc/security/limits.conf, and restart sshd"
        return warn(node.name, "limits", text, hint)
    if found := limit_finding(node, machine.memory, machine.cpu_limit, machine.process_limits):
        return found
    memory = "no limit of memory" if machine.memory is None else f"{size_words(machine.memory)} of memory"
    files_words = "no limit of open files" if machine.open_files is None else f"{machine.open_files} open files"
    return ok(node.name, "limits", f"{files_words}, {memory}")


def limit_finding(
    node: PlannedNode, memory: int | None, cpus: float | None, limits: Mapping[str, int]
) -> Finding | None:
    """The first limit of a node that will slow ranks down or end them, whatever their number; None: there is none.
    `memory`: bytes that its control groups allow; None: no limit. `cpus`: how many CPUs they allow at the same time; None: no limit.
    `limits`: those of each process, from `engine.node.limits.process_limits`."""
    ranks = count(len(node.ranks), "rank")
    if memory is not None and memory < LOW_MEMORY * len(node.ranks):
        text, fit = f"its control group allows {size_words(memory)} of memory for {ranks}", memory // LOW_MEMORY
        hint = f"request more memory, or start {fit} ranks there" if fit else "request more memory"
        return warn(node.name, "limits", text, hint)
    if cpus is not None and cpus < len(node.ranks):
        text = f"its control group allows {cpus:g} CPUs for {ranks}"
        return warn(node.name, "limits", text, "request more CPUs, or start fewer ranks there")
    cure = "ulimit -{0} unlimited where you start rankdeck, or a higher hard limit of {1} in /etc/security/limits.conf"
    if (seconds := limits.get("cpu")) is not None:
        text = f"the kernel ends each process after {seconds} s of processor time (ulimit -t)"
        return warn(node.name, "limits", text, cure.format("t", "cpu"))
    if (size := limits.get("as", LOW_ADDRESS_SPACE)) < LOW_ADDRESS_SPACE:
        text = f"each process has at most {size_words(size)} of address space (ulimit -v), and torch reserves more"
        return warn(node.name, "limits", text, cure.format("v", "as"))
    if (size := limits.get("fsize", LOW_FILE_SIZE)) < LOW_FILE_SIZE:
        text = f"no file can be larger than {size_words(size)} (ulimit -f), nor a log or a checkpoint"
        return warn(node.name, "limits", text, cure.format("f", "fsize"))
    return None


def login_finding(node: PlannedNode, ends_with: Login) -> Finding:
    """Whether processes outlive the login that started them."""
    remote = node.transport != "local"
    match ends_with:
        case "":
            return ok(node.name, "login", "processes outlive it")
        case "session":
            when = "the connection breaks" if remote else "you log out"
            text = f"systemd ends all processes there when {when} (KillUserProcesses=yes)"
            cure = f"{LINGER}, or set KillUserProcesses=no in /etc/systemd/logind.conf"
            return warn(node.name, "login", text, f"on that node: {cure}" if remote else cure)
        case "user":
            text = "systemd ends all processes there when your last session ends"
            return warn(node.name, "login", text, f"on that node: {LINGER}")


def _leftovers(node: str, machine: Machine) -> Finding:
    left = [one for one in machine.leftovers if not one.owned]
    if not left:
        runs = [one.run or one.mark for one in machine.leftovers]
        active = f"{', '.join(runs)} {'is' if len(runs) == 1 else 'are'} active there"
        return ok(node, "leftovers", f"none; {active}" if runs else "none")
    first, *more = left
    pids = " ".join(map(str, first.pids))
    text = f"{count(len(first.pids), 'process', 'processes')} of {first.run or first.mark}, with no agent: {pids}"
    text += f"; and of {count(len(more), 'more run')}" if more else ""
    return warn(node, "leftovers", text, f"to end them, on that node: kill -9 {pids}")


def names_interface(plan: LaunchPlan) -> list[str]:
    """The variables of the profile or the backend that set the interface."""
    env = {**plan.env_defaults, **plan.env}
    variables = (INTERFACE_NAMES.get(backend, "") for backend in backends_in(plan.backend.name))
    return [variable for variable in variables if env.get(variable)]


def _interface(plan: LaunchPlan, node: str, machine: Machine) -> list[Finding]:
    """The interface if a variable sets it, or with one node; otherwise the route to the head shows it later."""
    variables = names_interface(plan)
    if not variables:
        return [skip(node, "interface", "one node needs no network")] if len(plan.nodes) == 1 else []
    found = [_named_interface(plan, node, machine, variable) for variable in variables]
    return [worst(found)]


def _named_interface(plan: LaunchPlan, node: str, machine: Machine, variable: str) -> Finding:
    wanted = {**plan.env_defaults, **plan.env}[variable]
    names = list(dict.fromkeys(name for name, address in machine.interfaces if address))
    chosen = [name for name in names if is_meant(name, wanted, prefixes=variable == INTERFACE_NAMES["nccl"])]
    hint = f"set {variable} to one of {', '.join(names)}, or remove it"
    if not chosen:
        text = f"{variable} is {wanted!r}, but no interface with an address has that name"
        return fail(node, "interface", text, hint)
    if len(plan.nodes) > 1 and chosen == ["lo"]:
        return fail(node, "interface", f"{variable} is {wanted!r}, which reaches no other node", hint)
    address = next(address for name, address in machine.interfaces if name == chosen[0])
    return ok(node, "interface", f"{chosen[0]}, {address}, by {variable}")


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
