"""The quick part of a preflight, by the agents of a run that begins: what would fail late is told before it does.

The agents are there already, so no connection is opened for it, and the import of torch takes longer than the look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from engine.core.checks.cluster_findings import Answers, comparisons
from engine.core.checks.node_findings import clock_finding, job_findings, machine_findings
from engine.core.checks.preflight import Clock, Finding, Job, Machine, job_question
from engine.core.plan.plan import LaunchPlan, PlannedNode

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Asks the agent of a node: its name, the type of the answer, and the request."""


async def look(ask: Ask, plan: LaunchPlan, probes: dict[str, str]) -> list[Finding]:
    """Looks at every node of a plan.

    Args:
        ask: a question to an agent. Raises TimeoutError.
        plan: what the run runs.
        probes: the path of the probe on each node.

    Returns:
        What is wrong or may be. A node that does not answer, or not sensibly, is left out: its link says so.
    """
    answers = {node.name: Answers() for node in plan.nodes}
    looks = (_look_at(ask, plan, node, probes[node.name], answers[node.name]) for node in plan.nodes)
    found = [finding for findings in await asyncio.gather(*looks) for finding in findings]
    latest = {(finding.node, finding.check): finding for finding in [*found, *comparisons(answers)]}
    # This very run is what would be found as left over.
    return [one for one in latest.values() if one.state in ("warn", "fail") and one.check != "leftovers"]


async def _look_at(ask: Ask, plan: LaunchPlan, node: PlannedNode, probe: str, answers: Answers) -> list[Finding]:
    questions = [{"ask": "clock"}, {"ask": "machine"}, {"ask": "job", **job_question(plan)}]
    sent = time.time()
    try:
        said = await ask(node.name, "probed", type="probe", argv=[plan.python, "-I", probe], questions=questions)
        received = time.time()
        clock, machine, job = said["answers"]
        at = msgspec.convert(clock, Clock).time
        answers.machine, answers.job = msgspec.convert(machine, Machine), msgspec.convert(job, Job)
    except (TimeoutError, KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return []
    return [
        clock_finding(node.name, at - (sent + received) / 2, (received - sent) / 2),
        *machine_findings(plan, node, answers.machine),
        *job_findings(plan, node.name, answers.machine, answers.job, full=False),
    ]
