"""A launch plan as text for a pane: nodes as boxes with their ranks, and exactly what rank 0 is started with."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from engine.core.catalogue import BackendInfo
from engine.core.errors import RankdeckError
from engine.core.plan.plan import (
    AttemptPaths,
    LaunchPlan,
    PlannedNode,
    rank_argv,
    rank_environment,
    shown_environment,
    store_address,
)
from engine.core.terminal_text import visible
from tui.text.cells import plain_line
from tui.text.marks import MUTED, to_ascii

LABEL = 10
"""Width of the column with the labels."""

BACKEND_NAME = 9
"""Cells before what is said of a backend."""

MAX_BOX_RANKS = 64
"""Ranks of one node that are drawn one by one; more are a pair of numbers."""

LIBRARY = "..."
"""Stands for the folder that a run gets on its node, in the command line of a recipe."""


class _Drawing(NamedTuple):
    """The characters of a box."""

    top: str
    bottom: str
    side: str
    flat: str


_ROUND = _Drawing("┌┬┐", "└┴┘", "│", "─")
_ASCII = _Drawing("+++", "+++", "|", "-")


def plan_text(plan: LaunchPlan, width: int, *, ascii: bool = False) -> Content:  # noqa: A002
    """Args:
    plan: what would run.
    width: cells of a line.
    ascii: draws with ASCII characters.
    """
    ranks, nodes = plan.world_size, len(plan.nodes)
    transports = ", ".join(sorted({node.transport for node in plan.nodes}))
    facts = f"{plan.backend.name} · {_count(ranks, 'rank')} on {_count(nodes, 'node')} · {plan.backend.device}"
    facts += f" · {transports}"
    lines: list[Content | str] = [Content.styled(facts, "bold")]
    if plan.backend_note:
        lines += wrapped(plain_line(plan.backend_note).split(), width)
    if plan.description:
        lines += wrapped(plain_line(plan.description).split(), width)
    lines += ["", *boxes(plan.nodes, width, ascii=ascii), ""]
    for warning in plan.warnings:
        lines += labelled("warning", plain_line(warning.line).split(), width, style="$text-warning")
    argv = [visible(shlex.quote(word)) for word in rank_argv(plan, LIBRARY)]
    lines += labelled("rank 0", argv, width, style="$text-accent")
    lines += labelled("in", [plain_line(plan.workdir)], width)
    lines += labelled("store", f"{store_address(plan)}, a free port for each attempt".split(), width)
    if plan.fallback:
        lines += labelled("fallback", ", then ".join(spare.name for spare in plan.fallback).split(), width)
    policy = plan.policy
    failure = f"restart, at most {policy.max_restarts} times" if policy.on_failure == "restart" else policy.on_failure
    lines += labelled("on failure", failure.split(), width)
    ladder = ", ".join(f"{name} {seconds:g} s" for name, seconds in plan.stop_ladder)
    lines += labelled("stopping", ladder.split(), width)
    own = shown_environment(plan.env)
    if own:
        lines += labelled("env", _pairs(own), width)
    lines += labelled("unless set", _pairs(shown_environment(plan.env_defaults)), width)
    lines += labelled("per rank", _pairs(_given(plan, own)), width, style=MUTED)
    text = Content("\n").join(lines)
    return Content(to_ascii(text.plain), list(text.spans)) if ascii else text


def _given(plan: LaunchPlan, own: Container[str]) -> dict[str, str]:
    """What the launch gives rank 0 besides its profile. The port is not known before an attempt."""
    paths = AttemptPaths(
        library=LIBRARY,
        error=f"{LIBRARY}/error",
        metrics=f"{LIBRARY}/metrics",
        stacks=f"{LIBRARY}/stacks",
        handover=f"{LIBRARY}/state",
        traces=f"{LIBRARY}/nccl_trace_rank_",
        checkpoints=f"{LIBRARY}/checkpoints",
    )
    address = "127.0.0.1" if len(plan.nodes) == 1 else "found"
    given = rank_environment(plan, plan.places[0], run=LIBRARY, attempt=0, address=address, port=0, paths=paths)
    return {name: value for name, value in (given | {"MASTER_PORT": "free"}).items() if name not in own}


def backends_text(
    infos: Sequence[BackendInfo],
    chosen: str,
    width: int,
    *,
    ascii: bool = False,  # noqa: A002
) -> Content:
    """Every backend with the sign of whether it can run, and what helps where it can't.

    Args:
        infos: the backends.
        chosen: the one that a profile names.
        width: cells of a line.
        ascii: draws with ASCII characters.
    """
    lines: list[Content] = []
    for info in infos:
        mark, style = ("✖", "$text-error") if info.trouble else ("✔", "$text-success")
        name_style = "bold $text-accent" if info.name == chosen else "bold"
        can_run = [(MUTED, info.summary), ("", info.found)]
        said = [("$text-error", info.trouble), ("", info.hint)] if info.trouble else can_run
        begin = Content.assemble((mark, style), " ", (f"{plain_line(info.name):<6}", name_style), " ")
        for line_style, words in said:
            for line in wrapped(plain_line(words).split(), width - BACKEND_NAME) if words else ():
                lines.append(Content.assemble(begin, (line, line_style)))
                begin = Content(" " * BACKEND_NAME)
    text = Content("\n").join(lines)
    return Content(to_ascii(text.plain), list(text.spans)) if ascii else text


def error_text(error: RankdeckError, width: int) -> Content:
    """An error and its next step."""
    lines: list[Content | str] = [
        Content.styled(str(line), "$text-error") for line in wrapped(plain_line(error.message).split(), width)
    ]
    if error.hint:
        lines += ["", *wrapped(plain_line(error.hint).split(), width)]
    return Content("\n").join(lines)


def labelled(label: str, words: Iterable[str], width: int, *, style: str = "") -> list[Content]:
    """A label and words beside it, with the label's column left free in the lines that follow."""
    lines = wrapped(words, max(8, width - LABEL - 1))
    return [
        Content.assemble((f"{label if index == 0 else '':<{LABEL}} ", MUTED), (line, style))
        for index, line in enumerate(lines)
    ]


def wrapped(words: Iterable[str], width: int) -> list[str]:
    """Words in lines of at most `width` cells. A word is broken only where it alone is longer than a line."""
    width = max(1, width)
    lines: list[str] = [""]
    for word in words:
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append("")
        elif lines[-1]:
            lines[-1] += " "
        for character in word:
            if cell_len(lines[-1]) + cell_len(character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def boxes(nodes: Sequence[PlannedNode], width: int, *, ascii: bool = False) -> list[str]:  # noqa: A002
    """Every node as a box with a cell for each of its ranks, side by side as far as they fit.

    Args:
        nodes: the nodes of a plan.
        width: cells of a line.
        ascii: draws with ASCII characters.
    """
    digits = max(2, len(str(max(rank for node in nodes for rank in node.ranks))))
    rows: list[list[str]] = []
    used = 0
    for node in nodes:
        box = _box(node, width, digits, _ASCII if ascii else _ROUND)
        if rows and used + 2 + len(box[0]) <= width:
            row = rows[-1]
            height = max(len(row), len(box))
            row += [" " * used] * (height - len(row))
            box += [" " * len(box[0])] * (height - len(box))
            rows[-1] = [f"{left}  {right}" for left, right in zip(row, box, strict=True)]
            used += 2 + len(box[0])
        else:
            rows.append(box)
            used = len(box[0])
    return [line.rstrip() for row in rows for line in row]


def _box(node: PlannedNode, width: int, digits: int, drawing: _Drawing) -> list[str]:
    """Lines of equal length: the node's name, then its cells."""
    if len(node.ranks) > MAX_BOX_RANKS:
        cells = [f" {node.ranks[0]} to {node.ranks[-1]}, {len(node.ranks)} ranks "]
    else:
        cells = [str(rank).rjust(digits) for rank in node.ranks]
    cell = len(cells[0])
    columns = min(len(cells), max(1, (width - 1) // (cell + 1)))
    if len(cells) > columns:
        columns = max(power for power in (1, 2, 4, 8, 16, 32) if power <= columns)
    rule = [drawing.flat * cell] * columns
    lines = [plain_line(node.name), drawing.top[0] + drawing.top[1].join(rule) + drawing.top[2]]
    for begin in range(0, len(cells), columns):
        row = cells[begin : begin + columns]
        row += [" " * cell] * (columns - len(row))
        lines.append(drawing.side + drawing.side.join(row) + drawing.side)
    lines.append(drawing.bottom[0] + drawing.bottom[1].join(rule) + drawing.bottom[2])
    longest = max(cell_len(line) for line in lines)
    return [line + " " * (longest - cell_len(line)) for line in lines]


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{plain_line(name)}={plain_line(value)}" for name, value in env.items()]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
