"""Findings from comparing nodes: whether they reach the head, and whether they differ. Also findings about a node without answers."""

import re
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from engine.core.checks.findings import (
    CHECKS,
    Check,
    Finding,
    JobFacts,
    Machine,
    ProbeListener,
    Routes,
    State,
    Torch,
    fail,
    ok,
    skip,
)
from engine.core.checks.job_findings import SHARE
from engine.core.checks.node_findings import names_interface
from engine.core.plan.plan import LaunchPlan
from engine.core.words import count

MAX_ADDRESSES = 3  # addresses of the head that are listed if none was reached


# --- routes to the head --------------------------------------------------------------------------------------------------


def route_findings(plan: LaunchPlan, node: str, listener: ProbeListener | None, routes: Routes | None) -> list[Finding]:
    """How a node reaches the head. `listener`: where the head listens; None: unknown. `routes`: how it was reached; None: not tried."""
    head = plan.nodes[0].name
    if listener is None or routes is None:
        found = [skip(node, "head", f"{head} can't be asked")]
        interface = skip(node, "interface", f"{head} can't be asked")
    elif routes.reached:
        address, name = routes.reached[0]
        found = [ok(node, "head", f"{head} is reached at {address}")]
        interface = ok(node, "interface", f"{name} connects to {head}")
    else:
        reasons = "; ".join(f"{address}: {reason.lower()}" for address, reason in routes.missed[:MAX_ADDRESSES])
        text = f"{head} can't be reached from there: {reasons or 'it has only local addresses'}"
        hint = "check that the nodes have a common network and that no firewall blocks it: ranks connect to each other on any port"
        found = [fail(node, "head", text, hint)]
        interface = skip(node, "interface", f"no other node connects to {head}")
    return found if names_interface(plan) else [*found, interface]


def head_findings(
    plan: LaunchPlan, machine: Machine | None, listener: ProbeListener | None, routes: Mapping[str, Routes]
) -> list[Finding]:
    """Whether the head has an address that all other nodes reach. `routes`: by node, of the nodes that have tried."""
    head, others = plan.nodes[0].name, len(plan.nodes) - 1
    if not others:
        return [skip(head, "head", "one node needs no network")]
    reached = [{address for address, _ in way.reached} for way in routes.values()]
    common = [address for address in (listener.addresses if listener else ()) if all(address in one for one in reached)]
    if listener is None or not routes:
        found = [skip(head, "head", "no other node could try to reach it")]
        interface = skip(head, "interface", "unknown without a route to it")
    elif common:
        who = "all others reach it" if len(routes) == others else f"{len(routes)} of {count(others, 'other')} reach it"
        found = [ok(head, "head", f"{who} at {common[0]}")]
        names = {address: name for name, address in machine.interfaces} if machine else {}
        interface = ok(head, "interface", f"{names.get(common[0], '?')}, {common[0]}")
    else:
        hint = f"it has {', '.join(listener.addresses) or 'only local ones'}; put a node first that all others reach"
        found = [fail(head, "head", "not all other nodes can reach one address of it", hint)]
        interface = skip(head, "interface", "unknown without a route to it")
    return found if names_interface(plan) else [*found, interface]


# --- differences between nodes -------------------------------------------------------------------------------------------


class Answers(msgspec.Struct, kw_only=True):
    """A node's answers so far."""

    machine: Machine | None = None
    job: JobFacts | None = None
    torch: Torch | None = None

    @property
    def torch_version(self) -> str:
        """As torch reports it, else from its installed metadata; empty: torch can't be imported."""
        if self.torch is not None:
            return self.torch.facts.version if self.torch.facts is not None else ""
        return self.job.torch if self.job is not None else ""

    @property
    def content(self) -> str:
        """Beginning of the script's SHA-256; empty: there is no readable script."""
        script = self.job.script if self.job is not None else None
        return script.sha256[:8] if script is not None and not script.trouble else ""


def comparisons(answers: Mapping[str, Answers]) -> list[Finding]:
    """Findings about nodes that differ from most others; of two halves, the half without the head, which comes first."""
    started = {name: one.machine for name, one in answers.items() if one.machine and not (one.job and one.job.start)}
    versions = {name: one.torch_version for name, one in answers.items() if one.torch_version}
    contents = {name: one.content for name, one in answers.items() if one.content}
    minors = {name: ".".join(re.findall(r"\d+", machine.python)[:2]) for name, machine in started.items()}
    kinds = {name: machine.architecture for name, machine in started.items()}
    releases = {name: version.partition("+")[0] for name, version in versions.items()}
    same_torch = "install the same torch on all nodes"
    return [
        *_odd_ones(minors, "python", "warn", "ranks may not be able to unpickle each other's objects"),
        *_odd_ones(kinds, "python", "warn", "numerical results may differ, and binaries can't be shared"),
        *_odd_ones(versions, "torch", "warn", same_torch),
        *_odd_ones(releases, "torch", "fail", f"{same_torch}: process groups of different releases are not compatible"),
        *_odd_ones(contents, "script", "fail", SHARE, "SHA-256 "),
    ]


def _odd_ones(values: Mapping[str, str], check: Check, state: State, hint: str, what: str = "") -> list[Finding]:
    """A finding for each node whose value is not the usual one."""
    if not values:
        return []
    usual, often = Counter(values.values()).most_common(1)[0]  # of two halves, the head's wins: it comes first
    first = next(name for name, value in values.items() if value == usual)
    who = f"{first} and {count(often - 1, 'other')} have" if often > 1 else f"{first} has"
    return [
        Finding(node=name, check=check, state=state, text=f"{what}{value}, but {who} {usual}", hint=hint)
        for name, value in values.items()
        if value != usual
    ]


# --- no answer -----------------------------------------------------------------------------------------------------------


def silence_findings(node: str, known: Collection[Check], check: Check | None, text: str, hint: str) -> list[Finding]:
    """Findings about a node that stopped answering: one failure with the reason; the other checks are skipped. `check`: the check that
    fails; None: the first without a finding."""
    left = [one for one in CHECKS if one not in known]
    failed = check or left[0]
    skipped = [skip(node, one, "the node could not be asked") for one in left if one != failed]
    return [fail(node, failed, text, hint), *skipped]
