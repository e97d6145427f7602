"""The quick part of a check, by the agents of a run that starts, which reports problems that would otherwise appear after minutes.

It uses the open connections, and takes less time than importing torch.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from engine.core.checks.cluster_findings import Answers, comparisons
from engine.core.checks.findings import Clock, Finding, Job, Machine, job_question, machine_question
from engine.core.checks.job_findings import job_findings
from engine.core.checks.node_findings import clock_finding, machine_findings
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes.questions import Questions


async def check_early(questions: Questions, plan: LaunchPlan, probes: dict[str, str]) -> list[Finding]:
    """Checks every node of a plan.

    Args:
        questions: to the agents.
        plan: the run's.
        probes: path of the probe on each node.

    Returns:
        Problems and warnings. Nodes without a valid answer are left out, because their links report that.
    """
    answers = {node.name: Answers() for node in plan.nodes}
    checks = (_check_node(questions, plan, node, probes[node.name], answers[node.name]) for node in plan.nodes)
    found = [finding for findings in await asyncio.gather(*checks) for finding in findings]
    latest = {(finding.node, finding.check): finding for finding in [*found, *comparisons(answers)]}
    # "leftovers" would be this run itself.
    return [one for one in latest.values() if one.state in ("warn", "fail") and one.check != "leftovers"]


async def _check_node(
    questions: Questions, plan: LaunchPlan, node: PlannedNode, probe: str, answers: Answers
) -> list[Finding]:
    asked = requests.RunProbe(
        argv=(*plan.rank_python, "-I", probe),
        questions=(
            {"ask": "clock"},
            {"ask": "machine", **machine_question(plan, node)},
            {"ask": "job", **job_question(plan)},
        ),
    )
    sent = time.time()
    try:
        said = await questions.ask(node.name, asked, reports.ProbeAnswered)
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
