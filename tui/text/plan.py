"""A launch plan as text: nodes as boxes with their ranks, the command and the environment of rank 0. Also backends."""

import shlex
from collections.abc import Container, Sequence

from rich.cells import cell_len
from textual.content import Content

from engine.core.catalogue import BackendInfo
from engine.core.plan.batch import submit_argv
from engine.core.plan.batch.job import SCRIPT
from engine.core.plan.plan import LaunchPlan, PlannedNode, slow_import_words, store_address
from engine.core.plan.profile import BIND_WORDS
from engine.core.plan.rank import AttemptPaths, rank_argv, rank_environment
from engine.core.plan.secrets import without_secrets
from engine.core.terminal_text import visible
from engine.core.words import count
from engine.gate import NOT_LOOKED_UP
from tui.text.cells import plain_line
from tui.text.lines import labelled, sentence, wrapped
from tui.text.marks import MUTED, shown

BACKEND_NAME = 9  # cells before the description of a backend
MAX_BOX_RANKS = 64  # ranks of one node that are drawn one by one; if it has more, only the first and the last

FOLDER = "..."  # stands for the folder of the run on its node, whose name is not known before the launch


def plan_text(
    plan: LaunchPlan, width: int, *, ascii: bool = False, trusted_by: str = "a launch trusts it", shown_by: str = ""
) -> Content:
    """Everything that a launch would use. `ascii`: draws with ASCII characters. `trusted_by`: what lets nodes and programs be asked. `shown_by`: what
    shows the variables that rankdeck sets, of which there is only the number; empty: all are shown."""
    plan = without_secrets(plan)
    ranks, nodes = count(plan.world_size, "rank"), count(len(plan.nodes), "node")
    transports = ", ".join(sorted({node.transport for node in plan.nodes}))
    facts = f"{plan.backend.name} · {ranks} on {nodes} · {plan.backend.device} · {transports}"
    lines: list[Content | str] = [Content.styled(facts, "bold")]
    if not plan.is_looked_up:
        lines += [Content.styled(line, "$text-warning") for line in wrapped(f"{NOT_LOOKED_UP}; {trusted_by}", width)]
    for text in filter(None, (plan.message, plan.backend_note, plan.description)):
        lines += sentence(text, width)
    lines += ["", *boxes(plan.nodes, width), ""]
    for warning in plan.warnings:
        lines += labelled("warning", plain_line(warning.line), width, style="$text-warning")
    if plan.submission is not None:
        words = [visible(shlex.quote(word)) for word in submit_argv(plan.submission)]
        lines += labelled("submit", words, width, style="$text-accent")
        lines += labelled(SCRIPT, [plain_line(line) for line in plan.submission.script.splitlines()], width)
    argv = [visible(shlex.quote(word)) for word in rank_argv(plan, FOLDER, plan.places[0])]
    lines += labelled("rank 0", argv, width, style="$text-accent")
    lines += labelled("in", [plain_line(plan.workdir)], width)
    lines += labelled("store", f"{store_address(plan)}, a free port for each attempt", width)
    if plan.fallback:
        lines += labelled("fallback", ", then ".join(backend.name for backend in plan.fallback), width)
    if plan.layout.bind != "none":
        cpus = [f"{rank}: {cpus}" for node in plan.nodes for rank, cpus in zip(node.ranks, node.cpus, strict=False)]
        lines += labelled("bind", [f"{plan.layout.bind}, {BIND_WORDS[plan.layout.bind]}", *cpus], width)
    if plan.launch.warm and plan.preload:
        lines += labelled("preload", ", ".join(plan.preload), width)
    if plan.slow_imports:
        lines += labelled("imports", slow_import_words(plan), width, style="$text-accent")
    lines += labelled("on failure", plan.launch.failure_words, width)
    if plan.backend.rejoin_words:
        lines += labelled("rejoin", plan.backend.rejoin_words, width)
    lines += labelled("stopping", plan.launch.ladder_words, width)
    if plan.env:
        lines += labelled("env", _pairs(plan.env), width)
    given = _given(plan, plan.env)
    if shown_by:
        more = count(len(plan.env_defaults) + len(given), "more variable")
        lines += labelled("variables", f"{more}; {shown_by}", width, style=MUTED)
    else:
        lines += labelled("unless set", _pairs(plan.env_defaults), width)
        lines += labelled("per rank", _pairs(given), width, style=MUTED)
    return shown(Content("\n").join(lines), ascii=ascii)


def _given(plan: LaunchPlan, own: Container[str]) -> dict[str, str]:
    """Environment that the launch sets for rank 0 besides the profile's. The port is not known before an attempt."""
    paths = AttemptPaths(
        library=FOLDER,
        error=f"{FOLDER}/error",
        metrics=f"{FOLDER}/metrics",
        stacks=f"{FOLDER}/stacks",
        handover=f"{FOLDER}/state",
        traces=f"{FOLDER}/nccl_trace_rank_",
        checkpoints=f"{FOLDER}/checkpoints",
    )
    address = "127.0.0.1" if len(plan.nodes) == 1 else "found"
    given = rank_environment(plan, plan.places[0], run=FOLDER, attempt=0, address=address, port=0, paths=paths)
    return {name: value for name, value in (given | {"MASTER_PORT": "free"}).items() if name not in own}


def backends_text(infos: Sequence[BackendInfo], chosen: str, width: int, *, ascii: bool = False) -> Content:
    """Every backend, whether it can run, and what helps if it can't."""
    lines: list[Content] = []
    for info in infos:
        mark, style = ("✖", "$text-error") if info.trouble else ("✔", "$text-success")
        name_style = "bold $text-accent" if info.name == chosen else "bold"
        can_run = [(MUTED, info.summary), ("", info.found)]
        texts = [("$text-error", info.trouble), ("", info.hint)] if info.trouble else can_run
        begin = Content.assemble((mark, style), " ", (f"{plain_line(info.name):<6}", name_style), " ")
        for line_style, text in texts:
            for line in sentence(text, width - BACKEND_NAME, line_style) if text else ():
                lines.append(Content.assemble(begin, line))
                begin = Content(" " * BACKEND_NAME)
    return shown(Content("\n").join(lines), ascii=ascii)


def boxes(nodes: Sequence[PlannedNode], width: int) -> list[str]:
    """Every node of a plan as a box with a cell for each of its ranks, as many side by side as fit into `width` cells."""
    digits = max(2, len(str(max(rank for node in nodes for rank in node.ranks))))
    rows: list[list[str]] = []
    used = 0
    for node in nodes:
        box = _box(node, width, digits)
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


def _box(node: PlannedNode, width: int, digits: int) -> list[str]:
    """Lines of equal length: the node's name, then its cells."""
    if len(node.ranks) > MAX_BOX_RANKS:
        cells = [f" {node.ranks[0]} to {node.ranks[-1]}, {len(node.ranks)} ranks "]
    else:
        cells = [str(rank).rjust(digits) for rank in node.ranks]
    cell = len(cells[0])
    columns = min(len(cells), max(1, (width - 1) // (cell + 1)))
    if len(cells) > columns:
        columns = max(power for power in (1, 2, 4, 8, 16, 32) if power <= columns)
    rule = ["─" * cell] * columns
    lines = [plain_line(node.name), f"┌{'┬'.join(rule)}┐"]
    for begin in range(0, len(cells), columns):
        row = cells[begin : begin + columns]
        row += [" " * cell] * (columns - len(row))
        lines.append(f"│{'│'.join(row)}│")
    lines.append(f"└{'┴'.join(rule)}┘")
    longest = max(cell_len(line) for line in lines)
    return [line + " " * (longest - cell_len(line)) for line in lines]


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{plain_line(name)}={plain_line(value)}" for name, value in env.items()]
