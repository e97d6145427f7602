"""The agent keeps dictionaries: what it sends and what it reads is compared with the types of `engine.core.wire`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from tests.support import rows

NODE = Path(__file__).resolve().parents[2] / "engine" / "node"
FILES = sorted((NODE / "agent").rglob("*.py"))
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
Function = ast.FunctionDef


def concrete(base: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The types below `base` that are sent, by their tags."""
    found = {}
    for one in base.__subclasses__():
        found.update(concrete(one) or {str(one.__struct_config__.tag): one})
    return found


REQUESTS, NEWS = concrete(requests.Request), concrete(reports.Report)


def fields(kind: type[msgspec.Struct]) -> dict[str, bool]:
    """The fields of a type as they are on the wire, and whether each must be there."""
    return {field.encode_name: field.required for field in msgspec.structs.fields(kind)}


# --- what the agent sends -------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A message in the agent's source: its type, the fields that are written out, and whether there may be more."""

    kind: str
    fields: frozenset[str]
    is_open: bool
    line: int


def text_of(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def sent_messages() -> Iterator[Sent]:
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                given = {word.arg: word.value for word in node.keywords}
                kind = text_of(given.get("type"))
                names = [name for name in given if name is not None]
                is_open = None in given
            elif isinstance(node, ast.Dict):
                entries = {text_of(key): value for key, value in zip(node.keys, node.values, strict=True)}
                kind = text_of(entries.get("type"))
                names = [name for name in entries if name is not None]
                is_open = None in node.keys
            else:
                continue
            if kind is not None:
                yield Sent(kind, frozenset(names) - {"type"}, is_open, node.lineno)


SENT = list(sent_messages())


def test_the_agent_sends_every_type_of_news_and_no_other():
    assert {sent.kind for sent in SENT} == set(NEWS)


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: f"{sent.kind}-{sent.line}")
def test_what_the_agent_sends_fits(sent: Sent):
    known = fields(NEWS[sent.kind])
    assert sent.fields <= set(known)
    if not sent.is_open:
        assert {name for name, required in known.items() if required} <= sent.fields


# --- what the agent reads -------------------------------------------------------------------------------------------------


def functions() -> dict[str, list[Function]]:
    """The functions and methods of the agent by name."""
    found: dict[str, list[Function]] = {}
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node)
    return found


def classes() -> dict[str, list[list[Function]]]:
    """The methods of the agent's classes, by their names."""
    found: dict[str, list[list[Function]]] = {}
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append([one for one in node.body if isinstance(one, ast.FunctionDef)])
    return found


FUNCTIONS, CLASSES = functions(), classes()


def name_of(node: ast.expr) -> str | None:
    """The last name of `self._on_hello`, `hello`, or `self.spawn.on_hello`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def handlers() -> dict[str, list[Function]]:
    """What takes each request, by the table `{"hello": …}` of functions."""
    tables = []
    for tree in TREES:
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict) and len(node.keys) > 3:
                table = {text_of(key): name_of(value) for key, value in zip(node.keys, node.values, strict=True)}
                if all(key is not None and value in FUNCTIONS for key, value in table.items()):
                    tables.append(table)
    return {str(key): FUNCTIONS[str(value)] for table in tables for key, value in table.items()}


HANDLERS = handlers()


def reads(function: Function, argument: str, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, bool]]:
    """Fields of a dictionary that a function reads, and those that it hands it to: `(name, whether it must be there)`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and name_of(node.value) == argument:
            if isinstance(node.ctx, ast.Load) and (name := text_of(node.slice)) is not None:
                yield name, True
        elif isinstance(node, ast.Call):
            callee = node.func
            if isinstance(callee, ast.Attribute) and callee.attr == "get" and name_of(callee.value) == argument:
                yield str(text_of(node.args[0])), False
            for index, value in enumerate(node.args):
                if isinstance(value, ast.Name) and value.id == argument:
                    yield from reads_of_callee(name_of(callee), index, seen)


def reads_of_callee(name: str | None, index: int, seen: frozenset[str]) -> Iterator[tuple[str, bool]]:
    for made in FUNCTIONS.get(name or "", ()) if name not in seen else ():
        arguments = [argument.arg for argument in made.args.args if argument.arg != "self"]
        if index < len(arguments):
            yield from reads(made, arguments[index], seen | {str(name)})

    for methods in CLASSES.get(name or "", ()):
        (init,) = (method for method in methods if method.name == "__init__")
        arguments = [argument.arg for argument in init.args.args if argument.arg != "self"]
        if index < len(arguments):  # kept as an attribute of that name
            for method in methods:
                yield from reads(method, f"_{arguments[index]}", seen)


def argument_of(function: Function) -> str | None:
    names = [argument.arg for argument in function.args.args if argument.arg != "self"]
    return names[0] if names else None


def test_the_agent_takes_every_request_and_no_other():
    assert set(HANDLERS) == set(REQUESTS)


@pytest.mark.parametrize("kind", sorted(REQUESTS))
def test_the_agent_reads_fields_that_the_request_has(kind: str):
    known = fields(REQUESTS[kind])
    for function in HANDLERS[kind]:
        argument = argument_of(function)
        found = set(reads(function, argument)) if argument else set()
        assert {name for name, _ in found} <= set(known)
        is_always_sent = not REQUESTS[kind].__struct_config__.omit_defaults
        for name in {name for name, _ in found} - {name for name, must_be_there in found if not must_be_there}:
            assert known[name] or is_always_sent, name


def test_the_name_of_a_handler_is_unique():
    """Else the fields that another function reads would be taken for this one's."""
    assert {kind: len(made) for kind, made in HANDLERS.items() if len(made) != 1} == {}


def test_what_is_read_is_found():
    """Else the tests above would hold of anything."""
    (spawn,) = HANDLERS["spawn"]
    found = dict(reads(spawn, str(argument_of(spawn))))
    assert {"attempt", "ranks", "env", "env_defaults", "library"} <= set(found)
    assert found["attempt"]


# --- what comes ---------------------------------------------------------------------------------------------------------


def test_a_type_that_is_not_known_is_nothing():
    assert reports.read_report({"type": "weather", "sun": True}) is None


def test_a_field_that_is_not_known_is_passed_over():
    assert reports.read_report({"type": "pong", "from": "a newer agent"}) == reports.Pong()


@pytest.mark.parametrize(
    ("message", "place"),
    [
        *rows("unit/wire", "what_does_not_fit_is_refused_with_its_place"),
        ({"type": "ended", "attempt": 1 << 53, "rank": 0, "status": 0}, "attempt"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(message: object, place: str):
    with pytest.raises(ValueError, match=place):
        reports.read_report(message)


def test_bytes_come_as_they_are():
    news = reports.read_report({"type": "data", "attempt": 0, "rank": 1, "stream": 2, "offset": 3, "data": b"\xff\n"})
    assert news == reports.RankOutput(attempt=0, rank=1, stream=2, offset=3, data=b"\xff\n")


def test_a_request_holds_text_of_any_encoding():
    request = requests.SignalRank(attempt=0, rank=1, signal=15)
    assert requests.write_request(request) == {"type": "signal", "attempt": 0, "rank": 1, "signal": 15}
    assert requests.write_request(requests.MakeFolder(number=1, path="/\udcff"))["path"] == "/\udcff"
