"""What shows only between nodes: whether they reach the head, and whether they are alike. And what is said of one that is silent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from engine.core.checks.findings import (
    CHECKS,
    Check,
    Finding,
    Job,
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

MOST_SHOWN = 3
"""Addresses of the head that are told of when none is reached."""


# --- the way to the head -------------------------------------------------------------------------------------------------


def route_findings(plan: LaunchPlan, node: str, listener: ProbeListener | None, routes: Routes | None) -> list[Finding]:
    """How a node reaches the head.

    Args:
        plan: what would be launched.
        node: one that is not the head.
        listener: where the head listens; None where that is not known.
        routes: how it was reached; None where it was not tried.
    """
    head = plan.nodes[0].name
    if listener is None or routes is None:
        found = [skip(node, "head", f"{head} can't be asked")]
        interface = skip(node, "interface", f"{head} can't be asked")
    elif routes.reached:
        address, name = routes.reached[0]
        found = [ok(node, "head", f"{head} is reached at {address}")]
        interface = ok(node, "interface", f"{name} leads to {head}")
    else:
        reasons = "; ".join(f"{address}: {reason.lower()}" for address, reason in routes.missed[:MOST_SHOWN])
        text = f"{head} can't be reached from there: {reasons or 'it has no address but its own'}"
        hint = "ranks connect to any port of one another: is there a firewall, or no common network?"
        found = [fail(node, "head", text, hint)]
        interface = skip(node, "interface", f"none leads to {head}")
    return found if names_interface(plan) else [*found, interface]


def head_findings(
    plan: LaunchPlan, machine: Machine | None, listener: ProbeListener | None, routes: Mapping[str, Routes]
) -> list[Finding]:
    """What the others' routes say of the head: it needs one address that all of them reach.

    Args:
        plan: what would be launched.
        machine: what the head has, where that is known.
        listener: where it listened, if it did.
        routes: by node, of those that have tried.
    """
    head, others = plan.nodes[0].name, len(plan.nodes) - 1
    if not others:
        return [skip(head, "head", "one node needs no network")]
    reached = [{address for address, _ in way.reached} for way in routes.values()]
    common = [address for address in (listener.addresses if listener else ()) if all(address in one for one in reached)]
    if listener is None or not routes:
        found = [skip(head, "head", "no other node could try to reach it")]
        interface = skip(head, "interface", "not known without a way to it")
    elif common:
        who = "all others reach it" if len(routes) == others else f"{len(routes)} of {count(others, 'other')} reach it"
        found = [ok(head, "head", f"{who} at {common[0]}")]
        names = {address: name for name, address in machine.interfaces} if machine else {}
        interface = ok(head, "interface", f"{names.get(common[0], '?')}, {common[0]}")
    else:
        hint = f"it has {', '.join(listener.addresses) or 'none but its own'}; list a node first that all others reach"
        found = [fail(head, "head", "none of its addresses is reached by all others", hint)]
        interface = skip(head, "interface", "not known without a way to it")
    return found if names_interface(plan) else [*found, interface]


# --- nodes side by side --------------------------------------------------------------------------------------------------


class Answers(msgspec.Struct, kw_only=True):
    """What is known of a node so far."""

    machine: Machine | None = None
    job: Job | None = None
    torch: Torch | None = None

    @property
    def torch_version(self) -> str:
        """As torch says itself, or else as its installer has written down; empty where it can't be imported."""
        if self.torch is not None:
            return self.torch.facts.version if self.torch.facts is not None else ""
        return self.job.torch if self.job is not None else ""

    @property
    def content(self) -> str:
        """What tells the script from others; empty where there is none to be read."""
        script = self.job.script if self.job is not None else None
        return script.sha256[:8] if script is not None and not script.trouble else ""


def comparisons(answers: Mapping[str, Answers]) -> list[Finding]:
    """What is wrong only beside other nodes. A node that differs from most is told of; of two halves, the one without the head.

    Args:
        answers: by node, the head first.
    """
    started = {name: one.machine for name, one in answers.items() if one.machine and not (one.job and one.job.start)}
    versions = {name: one.torch_version for name, one in answers.items() if one.torch_version}
    contents = {name: one.content for name, one in answers.items() if one.content}
    minors = {name: ".".join(re.findall(r"\d+", machine.python)[:2]) for name, machine in started.items()}
    kinds = {name: machine.architecture for name, machine in started.items()}
    releases = {name: version.partition("+")[0] for name, version in versions.items()}
    same_torch = "install the same torch on all nodes"
    return [
        *_odd_ones(minors, "python", "warn", "what ranks pickle for one another may not be understood"),
        *_odd_ones(kinds, "python", "warn", "numbers may come out differently, and binaries can't be shared"),
        *_odd_ones(versions, "torch", "warn", same_torch),
        *_odd_ones(releases, "torch", "fail", f"{same_torch}: process groups of different releases do not go together"),
        *_odd_ones(contents, "script", "fail", SHARE, "SHA-256 "),
    ]


def _odd_ones(values: Mapping[str, str], check: Check, state: State, hint: str, what: str = "") -> list[Finding]:
    """A finding for each node whose value is not the usual one."""
    if not values:
        return []
    usual, often = Counter(values.values()).most_common(1)[0]  # of those that are equally common the first: the head's
    first = next(name for name, value in values.items() if value == usual)
    who = f"{first} and {count(often - 1, 'other')} have" if often > 1 else f"{first} has"
    return [
        Finding(node=name, check=check, state=state, text=f"{what}{value}, but {who} {usual}", hint=hint)
        for name, value in values.items()
        if value != usual
    ]


# --- silence -------------------------------------------------------------------------------------------------------------


def silence_findings(node: str, known: Collection[Check], check: Check | None, text: str, hint: str) -> list[Finding]:
    """What is said of a node that answers no more: why, once, and that the rest was not looked at.

    Args:
        node: which.
        known: checks that have findings.
        check: the one that it is told by; None: the first that has no finding.
        text: why.
        hint: the next step.
    """
    left = [one for one in CHECKS if one not in known]
    told = check or left[0]
    return [
        fail(node, told, text, hint),
        *(skip(node, one, "the node could not be asked") for one in left if one != told),
    ]
