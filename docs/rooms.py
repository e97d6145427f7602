"""Draws the rooms of the code and the state machine of a run, and keeps the drawings in `docs/architecture.md` current.

`python docs/rooms.py` writes them; `python docs/rooms.py --check` only tells whether they are current, by its exit status.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from engine.core.run.state import RunState

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "architecture.md"

PACKAGES = ("engine", "tui", "rankdeck")
SPLIT = ("engine", "engine.core", "engine.supervisor", "tui", "rankdeck")
"""Packages whose folders are rooms of their own. Folders below a room belong to this room."""

Graph = dict[str, set[str]]  # rooms, each with the rooms that it imports from

# --- rooms -------------------------------------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def room_of(module: str, names: dict[str, Path]) -> str:
    """The room that a module belongs to: its folder, or the folder's outermost part below a split package.

    Modules directly in the engine or the core are rooms of their own, because they are in different layers.
    """
    path = names[module]
    if path.name != "__init__.py" and module.rpartition(".")[0] in ("engine", "engine.core"):
        return module
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    parts = folder.split(".")
    while ".".join(parts[:-1]) not in SPLIT and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def imports_of(path: Path) -> Iterator[str]:
    """The names that a module imports, inside functions too; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms() -> Graph:
    """Which room imports from which."""
    names = modules()
    del names["engine"], names["engine.core"]  # only docstrings and the version
    graph: Graph = {room_of(module, names): set() for module in names}
    for module, path in names.items():
        room = room_of(module, names)
        for name in imports_of(path):
            target = name if name in names else name.rpartition(".")[0]
            if target in names and (other := room_of(target, names)) != room:
                graph[room].add(other)
    return graph


def outer(graph: Graph) -> Graph:
    """The same with the rooms of the core, of the supervisor, of the app and of the ranks' package folded into one each."""

    def fold(room: str) -> str:
        return next(
            (
                top
                for top in ("engine.core", "engine.supervisor", "tui", "rankdeck")
                if room == top or room.startswith(f"{top}.")
            ),
            room,
        )

    folded: Graph = {}
    for room, targets in graph.items():
        folded.setdefault(fold(room), set()).update(fold(target) for target in targets)
    return {room: targets - {room} for room, targets in folded.items()}


def reduced(graph: Graph) -> Graph:
    """Without arrows that follow from others."""

    def reach(room: str, without: str) -> set[str]:
        seen: set[str] = set()
        waiting = [target for target in graph.get(room, ()) if target != without]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += graph.get(one, ())
        return seen

    return {
        room: {target for target in targets if target not in reach(room, target)} for room, targets in graph.items()
    }


def mermaid(graph: Graph, inside: str) -> list[str]:
    """A drawing of rooms and the arrows between them.

    Args:
        graph: what is drawn.
        inside: the package whose name is left out.
    """
    drawn = {
        room: targets for room, targets in graph.items() if targets or any(room in other for other in graph.values())
    }
    short = {room: room.removeprefix(f"{inside}.") for room in drawn}
    lines = ["```mermaid", "graph TD"]
    lines += [f"  {short[room].replace('.', '_')}[{short[room]}]" for room in sorted(drawn)]
    lines += [
        f"  {short[room].replace('.', '_')} --> {short[target].replace('.', '_')}"
        for room in sorted(drawn)
        for target in sorted(drawn[room])
    ]
    return [*lines, "```"]


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    text = ast.get_docstring(ast.parse(modules()[room].read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:]) ", " ".join(text.split()), maxsplit=1)[0].rstrip(":")


def draw_rooms() -> str:
    """All rooms: drawings and a table."""
    graph = rooms()
    core = {
        room: {target for target in targets if target.startswith("engine.core")}
        for room, targets in graph.items()
        if room.startswith("engine.core.")
    }
    lines = [
        *mermaid(reduced(outer(graph)), "engine"),
        "",
        "Inside `engine/core`:",
        "",
        *mermaid(reduced(core), "engine.core"),
        "",
    ]
    lines += ["| room | purpose | imports from |", "|---|---|---|"]
    for room in sorted(graph):
        package = next(top for top in reversed(SPLIT) if room == top or room.startswith(f"{top}."))
        near = {target.removeprefix("engine.") for target in graph[room] if target.startswith("engine.core.")}
        if package != "engine.core":
            near = {"core"} if near else set()
        near |= {target.removeprefix("engine.") for target in graph[room] if not target.startswith("engine.core.")}
        targets = ", ".join(f"`{target}`" for target in sorted(near)) or "nothing"
        place = modules()[room].relative_to(ROOT).as_posix().removesuffix("/__init__.py")
        lines.append(f"| `{place}` | {purpose(room)} | {targets} |")
    return "\n".join(lines)


# --- the state machine -------------------------------------------------------------------------------------------------------


@cache
def _states() -> tuple[set[RunState], dict[tuple[str, str], set[str]]]:
    """The states of a run with one node and two ranks that plausible events lead to, and the events between two phases."""
    from engine.core.run import events as ev
    from engine.core.run import state as st
    from engine.core.run.machine import launch, step

    def plausible(state: st.RunState) -> Iterator[ev.AnyEvent]:
        """What may happen next."""
        (node,) = state.nodes
        now = {"at": 0.0, "attempt": state.attempt}
        is_connected, phase = node.link == "up", state.phase
        yield ev.StopRequested(at=0.0, by="")
        yield ev.RestartRequested(at=0.0, by="")
        if not is_connected:
            yield ev.NodeGivenUp(at=0.0, node=node.name, reason="")
            yield ev.NodeConnected(at=0.0, node=node.name, agent_pid=1)
            return
        if isinstance(phase, st.Clearing):
            yield ev.NodeCleared(node=node.name, **now)
        if isinstance(phase, st.Closing):
            yield ev.NodeClosed(at=0.0, node=node.name)
        if isinstance(phase, st.Starting) and state.store_port is None:
            yield ev.StoreOpened(node=node.name, port=1, **now)
            return
        if isinstance(phase, (st.Starting, st.Running)):
            yield ev.StoreLost(reason="", **now)
        for rank, what in enumerate(state.ranks):
            own = {**now, "rank": rank, "generation": state.generation_of(rank)}
            if isinstance(what, st.Pending):
                yield ev.RankSpawned(pid=1, **own)
            elif isinstance(what, st.Alive):
                yield ev.RankJoined(step=1, **{**own, "generation": state.generation})
                yield ev.RankEnded(status=0, **own)
                yield ev.RankEnded(status=1, **own)
                yield ev.RankLost(reason="", **own)

    found: dict[tuple[str, str], set[str]] = {}
    waiting = [
        launch(ev.RunLaunched(at=0.0, run="r", name="r", nodes=(("n", (0, 1)),), on_failure=policy, max_restarts=1))[0]
        for policy in ("hold", "stop", "restart")
    ]
    seen = set(waiting)
    while waiting:
        state = waiting.pop()
        for event in plausible(state):
            after = replace(step(state, event)[0], spans=())  # the past of a state decides nothing
            before_name, after_name = type(state.phase).__name__, type(after.phase).__name__
            if before_name != after_name:
                found.setdefault((before_name, after_name), set()).add(type(event).__name__)
            if after not in seen and after.attempt <= 1 and after.generation <= 1:
                seen.add(after)
                waiting.append(after)
    return seen, found


def draw_machine() -> str:
    """The phases of a run and the events that lead from one to another, found by trying every plausible event in every state."""
    from engine.core.run import state as st

    order = [phase.__name__ for phase in st.Phase.__args__]
    lines = ["```mermaid", "stateDiagram-v2", "  [*] --> Opening: RunLaunched"]
    for (before, to), names in sorted(_states()[1].items(), key=lambda one: [order.index(name) for name in one[0]]):
        lines.append(f"  {before} --> {to}: {', '.join(sorted(names))}")
    return "\n".join([*lines, "```"])


def draw_table() -> str:
    """What every event does in every phase, found by trying one of each kind for each rank in every state."""
    from engine.core.run import actions as act
    from engine.core.run import events as ev
    from engine.core.run import state as st
    from engine.core.run.machine import step

    def event_of(kind: type[ev.Event], state: st.RunState, rank: int) -> ev.AnyEvent:
        """An event about a rank or the node of the current attempt."""
        values = {
            "at": 9.0, "node": "n", "attempt": state.attempt, "rank": rank, "generation": state.generation, "by": "", "reason": "", "pid": 1,
            "signal": 9, "status": 1, "port": 1, "agent_pid": 1, "seconds": 1.0, "kind": "nan", "ranks": (rank,), "text": "", "policy": "stop",
            "check": "", "fails": False, "modules": (("torch", 1.0),), "run": "r", "name": "r", "nodes": (("n", (0, 1)),), "on_failure": "hold",
            "max_restarts": 1, "job": "1", "found": ev.Found(), "folder": "ckpt",
        }  # fmt: skip
        if issubclass(kind, ev.ProcessEvent):
            values["generation"] = state.generation_of(rank)
        if kind is ev.NodeConnected:
            values.pop("ranks")
        if kind is ev.KillRequested:
            values["pid"] = None
        return kind(**{name: values[name] for name in kind.__struct_fields__ if name in values})  # type: ignore[return-value]

    order = [phase.__name__ for phase in st.Phase.__args__]
    cells: dict[tuple[str, str], set[str]] = {}
    # One of the states that differ only in what no cell depends on, such as the order in which ranks ended.
    alike = {
        (
            state.phase,
            state.on_failure,
            *map(type, state.ranks),
            state.nodes[0].link,
            state.store_port,
            state.joined,
            state.elastic,
            state.store_trouble,
            state.restarts,
            state.failed_at,
            state.attempt,
            tuple(getattr(one, "status", 0) for one in state.ranks),
        ): state
        for state in sorted(_states()[0], key=repr)
    }
    for state in alike.values():
        for kind in ev.AnyEvent.__args__:
            for rank in range(len(state.ranks) if issubclass(kind, (ev.RankEvent, ev.KillRequested)) else 1):
                after, actions = step(state, event_of(kind, state, rank))
                cell = cells.setdefault((kind.__name__, type(state.phase).__name__), set())
                if type(after.phase) is not type(state.phase):
                    cell.add(type(after.phase).__name__)
                elif replace(after, spans=state.spans) != state or not all(
                    isinstance(action, act.Ignore) for action in actions
                ):
                    cell.add("+")
    lines = [f"| | {' | '.join(order)} |", "|---" * (len(order) + 1) + "|"]
    for kind in ev.AnyEvent.__args__:
        row = (sorted(cells[kind.__name__, phase], key=lambda one: [*order, "+"].index(one)) for phase in order)
        lines.append(f"| {kind.__name__} | {' | '.join(', '.join(cell) or '·' for cell in row)} |")
    return "\n".join(lines)


# --- the document ------------------------------------------------------------------------------------------------------------


def current(text: str) -> str:
    """The document with its drawings renewed."""
    for name, drawing in (("rooms", draw_rooms()), ("machine", draw_machine()), ("table", draw_table())):
        begin, end = f"<!-- {name}: made by docs/rooms.py -->", f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{drawing}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Writes the document, or with `--check` only compares it. Returns the exit status: 1 if it was not current."""
    old = DOCUMENT.read_text(encoding="utf-8")
    new = current(old)
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(new, encoding="utf-8")
    elif new != old:
        sys.stderr.write("the drawings in docs/architecture.md are out of date: python docs/rooms.py renews them\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
