"""Reads hostfiles of Open MPI, MPICH, DeepSpeed and PBS: nodes and their numbers of ranks. One host a line: `gpu01`, `gpu01 slots=4
max_slots=8` (Open MPI; DeepSpeed), `gpu01:4 binding=…` (MPICH). If a host has several lines, as in PBS's files, every line is one rank."""

from engine.core.errors import ProfileError
from engine.core.plan.layout import MAX_RANKS, LayoutError, Slots, count_of, parse_node, quoted

_MOST = frozenset({"max_slots", "max-slots", "slots_max", "slots-max"})
_IGNORED = frozenset({"binding"})  # `binding` pins ranks to cores in MPICH; it does not change the number of ranks

_FORMS = "a line is a host, with or without its number of ranks: gpu01, gpu01:4 or gpu01 slots=4"


def parse_hostfile(text: str, file: str) -> tuple[Slots, ...]:
    """Reads a hostfile. Returns each host once, in the order of the first lines. `ranks` is None for a host without a count, if no host
    has several lines. Raises ProfileError: a line is invalid."""
    lines: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        try:
            slots = _read(said)
            before = lines.setdefault(slots.node, [])
            if before and (slots.ranks or slots.node in counts):
                hint = "give all its ranks on one line, or none on any"
                raise LayoutError(f"{slots.node} is on line {before[0]} already", hint=hint)
        except LayoutError as error:
            raise ProfileError(file, number, "", str(error), hint=error.hint) from None
        before.append(number)
        if slots.ranks:
            counts[slots.node] = slots.ranks
    if not lines:
        raise ProfileError(file, None, "", "names no host", hint=_FORMS)
    a_line_is_a_rank = any(len(numbers) > 1 for numbers in lines.values())
    return tuple(
        Slots(node=node, ranks=counts.get(node, len(numbers) if a_line_is_a_rank else None))
        for node, numbers in lines.items()
    )


def _read(line: str) -> Slots:
    """Reads one line, which must not be empty. Raises LayoutError."""
    host, *words = " ".join(line.split()).replace(" =", "=").replace("= ", "=").split()
    try:
        node = parse_node(host)
    except LayoutError as error:
        raise LayoutError(str(error), hint=_FORMS) from None
    slots, most = node.ranks, None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in {"slots"} | _MOST | _IGNORED:
            raise LayoutError(f"{quoted(word)} is an unknown hostfile field", hint=_FORMS)
        if name in _IGNORED:
            continue
        count = count_of(value)
        if count is None:
            raise LayoutError(f"{quoted(word)} has no valid number of ranks", hint=f"1 to {MAX_RANKS}: {name}=4")
        if name in _MOST:
            most = count
        elif slots is not None:
            raise LayoutError("has two numbers of ranks", hint=_FORMS)
        else:
            slots = count
    if most is not None and slots is not None and slots > most:
        raise LayoutError(f"slots={slots} is more than max_slots={most}", hint="reduce slots or increase max_slots")
    return Slots(node=node.node, ranks=slots)
