"""The quick part of a check, by the agents of a run that begins: problems that would otherwise appear after minutes are reported
at once.

The agents are there already, so no connection is opened for it, and importing torch takes longer than the check.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from engine.core.checks.cluster_findings import Answers, comparisons
from engine.core.checks.findings import Clock, Finding, Job, Machine, job_question
from engine.core.checks.job_findings import job_findings
from engine.core.checks.node_findings import clock_finding, machine_findings
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.wire import agent as wire
from engine.supervisor.questions import Questions


async def check_early(questions: Questions, plan: LaunchPlan, probes: dict[str, str]) -> list[Finding]:
    """Checks every node of a plan.

    Args:
        questions: to the agents.
        plan: what the run runs.
        probes: the path of the probe on each node.

    Returns:
        What is wrong or may be. A node that does not answer, or not sensibly, is left out: its link reports that.
    """
    answers = {node.name: Answers() for node in plan.nodes}
    checks = (_check_node(questions, plan, node, probes[node.name], answers[node.name]) for node in plan.nodes)
    found = [finding for findings in await asyncio.gather(*checks) for finding in findings]
    latest = {(finding.node, finding.check): finding for finding in [*found, *comparisons(answers)]}
    # This very run is what would be found as left over.
    return [one for one in latest.values() if one.state in ("warn", "fail") and one.check != "leftovers"]


async def _check_node(
    questions: Questions, plan: LaunchPlan, node: PlannedNode, probe: str, answers: Answers
) -> list[Finding]:
    asked = wire.RunProbe(
        argv=(plan.python, "-I", probe),
        questions=({"ask": "clock"}, {"ask": "machine"}, {"ask": "job", **job_question(plan)}),
    )
    sent = time.time()
    try:
        said = await questions.ask(node.name, asked, wire.ProbeAnswered)
        received = time.time()
        clock, machine, job = said.answers
        at = msgspec.convert(clock, Clock).time
        answers.machine, answers.job = msgspec.convert(machine, Machine), msgspec.convert(job, Job)
    except (TimeoutError, ValueError):
        return []
    return [
        clock_finding(node.name, at - (sent + received) / 2, (received - sent) / 2),
        *machine_findings(plan, node, answers.machine),
        *job_findings(plan, node.name, answers.machine, answers.job, full=False),
    ]
