"""Parses and summarises the ranks' Python stacks, as `faulthandler` writes them; ranks with the same stack are shown once."""

from collections.abc import Mapping, Sequence

import msgspec

from engine.core.failures.collectives import Wait, compare
from engine.core.failures.flight_recorder import read_record
from engine.core.failures.known import Found, find
from engine.core.patterns import late
from engine.core.words import count, rank_ranges

_THREAD = late(r"^(Current thread|Thread) 0x[0-9a-fA-F]+(?: \[[^\]]*\])? \(most recent call first\):$")
_FRAME = late(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_TEMPLATE = late(r"/library/[0-9a-f]+/(?:template|forked)\.py$")
_ANSWERING = "/rankdeck/_collectives.py"  # rankdeck's own thread, which is left out
_ELASTIC = "/rankdeck/elastic/"
_ELASTIC_WAITS = {
    "_await_next": "waiting for a dead rank to come back",
    "_is_peers_fault": "waiting to be told whether a rank has died",
    "_gather": "waiting for the other ranks to join",
    "_all_have_formed": "waiting for the other ranks to join",
}
"""The activity of a main thread in these functions of `rankdeck.elastic`."""

MOST_PIDS = 8  # most processes that a line names


class Frame(msgspec.Struct, frozen=True):
    """One call, the innermost first in a stack."""

    file: str
    line: int
    function: str


class ChildStack(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a process below a rank: `text` as `faulthandler` writes it."""

    pid: int
    text: str


class RankStack(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a rank: `text` as `faulthandler` writes it, or the `reason` why there is none."""

    rank: int
    text: str = ""
    reason: str = ""
    collectives: str = ""  # the state of its process groups, for `read_record`
    children: tuple[ChildStack, ...] = ()
    programs: tuple[str, ...] = ()  # names of programs below it that are no Python, such as compilers


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, or processes by number, whose main thread has the same stack. `threads`: number of other threads of the first process."""

    ranks: tuple[int, ...]
    doing: str
    frames: tuple[Frame, ...]
    threads: int


def parse(text: str) -> list[tuple[Frame, ...]]:
    """The threads of the last dump in a text, the main thread last, as in `faulthandler`'s output."""
    threads: list[list[Frame]] = []
    finished = False
    for line in text.splitlines():
        if _THREAD.match(line):
            if finished:
                threads, finished = [], False
            threads.append([])
        elif (found := _FRAME.match(line)) and threads:
            threads[-1].append(Frame(found["file"], int(found["line"]), found["function"]))
            finished = found["function"] == "<module>"
    return [
        tuple(frame for frame in thread if not _TEMPLATE.search(frame.file))
        for thread in threads
        if not any(frame.file.endswith(_ANSWERING) for frame in thread)
    ]


def doing(frames: Sequence[Frame]) -> str:
    """The activity of a main thread, in a few words."""
    for frame in frames:
        if _ELASTIC in frame.file and frame.function in _ELASTIC_WAITS:
            return _ELASTIC_WAITS[frame.function]
    if known := place(frames):
        return known.detail
    own = own_frame(frames)
    if own is None:
        return "in no Python code" if not frames else f"in {frames[0].function}"
    return f"in {own.function} ({own.file.rsplit('/', 1)[-1]}:{own.line})"


def place(frames: Sequence[Frame]) -> Found | None:
    """The known place where a thread is; of several, the one whose entry stands first. None: it is unknown."""
    return find("\n".join(f'  File "{one.file}", line {one.line} in {one.function}' for one in frames), "place")


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost call in one of the user's files; None: there is none."""
    return next((frame for frame in frames if "/site-packages/" not in frame.file), None)


def fold(stacks: Mapping[int, str]) -> list[Fold]:
    """Groups ranks by the stack of their main thread, most common first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    threads: dict[tuple[Frame, ...], int] = {}
    for rank, text in stacks.items():
        dump = parse(text)
        frames = dump[-1] if dump else ()
        groups.setdefault(frames, []).append(rank)
        threads.setdefault(frames, max(0, len(dump) - 1))
    folds = [
        Fold(ranks=tuple(ranks), doing=doing(frames), frames=frames, threads=threads[frames])
        for frames, ranks in groups.items()
    ]
    return sorted(folds, key=lambda one: (-len(one.ranks), one.ranks))


def waits(stacks: Sequence[RankStack]) -> list[Wait]:
    """Which ranks wait for which in collectives."""
    return compare({one.rank: read_record(one.collectives) for one in stacks})


def doings(stacks: Sequence[RankStack], groups: Sequence[Fold]) -> list[str]:
    """A line for each group of ranks, with the programs below them and the lock file that they wait for, and for ranks without a stack."""
    programs = {one.rank: one.programs for one in stacks}
    locks = _locks(stacks)
    lines = []
    for group in groups:
        waited = "".join(f"; {words}" for words in dict.fromkeys(locks[rank] for rank in group.ranks if rank in locks))
        names = dict.fromkeys(name for rank in group.ranks for name in programs.get(rank, ()))
        runs = f", which runs {', '.join([*names][:MOST_PIDS])}" if names else ""
        lines.append(f"{rank_ranges(group.ranks)}{runs}: {group.doing}{waited}")
    return lines + _silent(stacks)


def _locks(stacks: Sequence[RankStack]) -> dict[int, str]:
    """The lock file that each rank waits for, in words; ranks that wait for none are left out."""
    records = {one.rank: read_record(one.collectives) for one in stacks if '"lock": [' in one.collectives}
    return {rank: one.lock.words for rank, one in records.items() if one is not None and one.lock is not None}


def _silent(stacks: Sequence[RankStack]) -> list[str]:
    silent: dict[str, list[int]] = {}
    for one in stacks:
        if not one.text:
            silent.setdefault(one.reason, []).append(one.rank)
    return [f"{rank_ranges(ranks)}: no stack: {reason}" for reason, ranks in silent.items()]


def _told(who: str, group: Fold) -> list[str]:
    lines = [f"{who}: {group.doing}"]
    lines += [f"    {frame.function}  {frame.file}:{frame.line}" for frame in group.frames]
    if group.threads:
        lines.append(f"    and {group.threads} other thread{'s' if group.threads > 1 else ''}")
    return [*lines, ""]


def story(stacks: Sequence[RankStack]) -> list[str]:
    """Lines for people: which ranks wait for which, then the stacks of ranks, then those of processes below them."""
    lines = [wait.sentence for wait in waits(stacks)]
    lines += [f"rank {rank} waits: {words}" for rank, words in _locks(stacks).items()]
    lines += [""] if lines else []
    for group in fold({one.rank: one.text for one in stacks if one.text}):
        lines += _told(rank_ranges(group.ranks), group)
    children = [(one.rank, child) for one in stacks for child in one.children]
    for group in fold({number: child.text for number, (_, child) in enumerate(children)}):
        pids = ", ".join(str(children[number][1].pid) for number in group.ranks[:MOST_PIDS])
        more = ", …" if len(group.ranks) > MOST_PIDS else ""
        of = rank_ranges(sorted({children[number][0] for number in group.ranks}))
        lines += _told(f"{count(len(group.ranks), 'process', 'processes')} below {of} ({pids}{more})", group)
    return lines + _silent(stacks)
