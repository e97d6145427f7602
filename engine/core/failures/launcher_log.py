"""Splits the log of a job by rank, and reads what its launcher reports about the ends of ranks. Reads logs of torchrun, Slurm, Open MPI's
and MPICH's mpirun, DeepSpeed, Lightning, rankdeck, and of a single process. `prefixes` finds the rank of a line. A line without a rank is
the launcher's, or its rank is unknown."""

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from engine.core.failures.diagnosis import TAIL, is_secondary
from engine.core.failures.known import Found, find, find_all
from engine.core.failures.text.evidence import ending, level
from engine.core.failures.text.prefixes import split
from engine.core.failures.text.styles import unwrapped
from engine.core.failures.text.tracebacks import all_chains
from engine.core.failures.verdict import Witness
from engine.core.patterns import late
from engine.core.terminal_text import SEQUENCE

MAX_TAIL = 1 << 14  # characters at the end of a rank's output that are searched if its exit status is unknown

MAX_LINE = 8192  # characters of a line that are read
MOST_RANKS = 4096  # most ranks that one line of a launcher names

_BLOCK = late(r"^(?:\[\d+\]:|Root Cause \(first observed failure\):)$")
_FIELD = late(r"^  (?P<name>time|rank|exitcode|error_file|traceback) *: ?(?P<value>.*)$")
_RULE = late(r"^[=-]{20,}$")
_HELP_RULE = late(r"^-{60,}$")
_TRACEBACK = "Traceback (most recent"
_AGENT_EXCEPTION = late(r"(?:torch\.distributed\.elastic\.multiprocessing\.errors\.)?ChildFailedError:")
_AGENT_LINE = late(r"^[WEI]\d{4} \S+ \d+ .{0,200}torch/distributed/elastic/|^rankdeck: ")
_LOCAL_END = late(r"failed \(exitcode: (?P<status>-?\d{1,9})\) local_rank: (?P<local>\d{1,5}) ")
_RESTARTS = "attempts left; will restart worker group"  # torchrun
_GLUED = late(r"(?<=\])(?=\[rank\d{1,5}\]: ?[TE\[])")  # between a bar and what a rank prints behind it
_LONGEST_TRACEBACK = 200  # longest traceback of torchrun itself, in lines


class _Process:
    """Facts from the log about one rank, or about lines without a rank."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.status: int | None = None
        self.claimed = False
        self.time = ""
        self.report: Found | None = None
        self.line = ""
        self.begin: int | None = None  # number of the line of its first error


def read_log(text: str) -> list[Witness]:
    """The processes in a log; see `read_logs`."""
    return read_logs([("", None, text)])


def read_logs(files: Iterable[tuple[str, int | None, str]]) -> list[Witness]:
    """The processes in the logs of one job. `files`: the name of each, the rank that its name tells, and its text, or its beginning and
    its end. Returns every rank in order; then the lines without a rank, as one process for each file or node, if they show a failure."""
    whole = list(files)
    if any(_RESTARTS in text for _, _, text in whole):  # the last attempt decides, if it shows a failure
        newest = _read_attempt([(name, rank, text.rpartition(_RESTARTS)[2]) for name, rank, text in whole])
        if any(one.failed for one in newest):
            return newest
    return _read_attempt(whole)


def _read_attempt(files: Iterable[tuple[str, int | None, str]]) -> list[Witness]:
    """The processes of one attempt; see `read_logs`."""
    ranks, others = defaultdict[int, _Process](_Process), defaultdict[str, _Process](_Process)
    of_local: dict[int, set[int]] = {}  # the ranks of each local rank, by their tags
    number = 0
    for name, of_file, text in files:
        for rank, source, line, local in split(clean_lines(text)):
            number += 1
            rank = of_file if rank is None else rank
            process = others[source or name] if rank is None else ranks[rank]
            if process.begin is None and (line.startswith(_TRACEBACK) or "Error" in line):
                process.begin = number
            process.lines.append(line)
            if rank is not None and local is not None:
                of_local.setdefault(local, set()).add(rank)
    for process in (*ranks.values(), *others.values()):
        process.lines = unwrapped(process.lines)
    launchers = "\n".join("\n".join(process.lines) for process in others.values())
    for process in others.values():
        own = _read_torchrun(process.lines, ranks, of_local)
        _read_ends("\n".join(process.lines), ranks, process)
        process.lines = own
    ended = [one for one in ranks.values() if one.line and one.status not in (None, 0, -signal.SIGTERM)]
    if ended and not any(one.claimed for one in ranks.values()):
        ended[0].claimed = True  # torchrun's agent has logged it first, and its list of failures is missing
    _give_away(ranks, others)
    witnesses = [_witness(rank, process, launchers) for rank, process in sorted(ranks.items())]
    nobody = [_witness(None, process, launchers, source) for source, process in others.items()]
    if not any(one.failed for one in (*witnesses, *nobody)):  # all that is known is a complaint about another process
        for at, one in enumerate(witnesses):
            words = ending(str(one.output)).words  # its last ones, since its last progress
            complains = find(words, "consequence", context=str(one.output)) is not None
            witnesses[at] = replace(one, failed=one.status is None and complains)
    return [*witnesses, *(one for one in nobody if one.failed)]


def clean_lines(text: str) -> list[str]:
    """The lines without control sequences; each state of a progress bar is a line."""
    plain = SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text
    plain = _GLUED.sub("\n", plain) if "][rank" in plain else plain
    return [line[:MAX_LINE] for line in plain.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n").split("\n")]


# --- reports of launchers --------------------------------------------------------------------------------------------


def _read_torchrun(lines: list[str], ranks: dict[int, _Process], of_local: Mapping[int, set[int]]) -> list[str]:
    """Reads the ends of ranks from torchrun's own lines. Returns the other lines. A local rank of several nodes names no rank."""
    own: list[tuple[int, str]] = []
    begin: int | None = None
    rules = 0
    for at, line in enumerate(lines):
        if _AGENT_EXCEPTION.match(line):
            first = max(0, at - _LONGEST_TRACEBACK)
            begin = next((back for back in range(at, first, -1) if lines[back].startswith(_TRACEBACK)), at)
            rules = 0
            while own and own[-1][0] >= begin:
                own.pop()
        elif begin is not None:
            rules += line.startswith("=") and _RULE.match(line) is not None
            if rules == 2:  # the block is between two rules
                _read_block(lines[begin:at], ranks)
                begin = None
        elif _AGENT_LINE.match(line):
            if found := _LOCAL_END.search(line):
                local = int(found["local"])
                named = sorted(of_local.get(local, {local}))
                if len(named) == 1:
                    _end_of(ranks, named[0], int(found["status"]), line=line)
        else:
            own.append((at, line))
    if begin is not None:
        _read_block(lines[begin:], ranks)
    return [line for _, line in own]


def _read_block(lines: list[str], ranks: dict[int, _Process]) -> None:
    """Reads the list of failures in `ChildFailedError`."""
    claimed = False
    fields: dict[str, list[str]] = {}
    for line in [*lines, "[0]:"]:
        if _BLOCK.match(line) or _RULE.match(line):
            _take_fields(fields, ranks, claimed=claimed)
            fields = {}
            claimed = claimed or line.startswith("Root Cause")
        elif found := _FIELD.match(line):
            fields[found["name"]] = [found["value"]]
        elif "traceback" in fields:
            fields["traceback"].append(line.removeprefix("  "))


def _take_fields(fields: dict[str, list[str]], ranks: dict[int, _Process], *, claimed: bool) -> None:
    numbers = [re.match(r"-?\d{1,9}", fields.get(name, [""])[0]) for name in ("rank", "exitcode")]
    if not numbers[0] or not numbers[1]:
        return
    process = _end_of(ranks, int(numbers[0][0]), int(numbers[1][0]))
    if process.time:
        return  # an earlier attempt has listed it
    process.claimed, process.time = claimed, fields.get("time", ["?"])[0]
    said = fields.get("traceback", [""])
    if said[0].startswith("Traceback") and not all_chains("\n".join(process.lines), fatal=True):
        process.lines += said
    elif said[0].startswith("Signal"):
        process.line = said[0]


def _read_ends(launcher: str, ranks: dict[int, _Process], untagged: _Process) -> None:
    """Reads the ends of ranks from messages of mpirun, Slurm, DeepSpeed, a shell and rankdeck, in their order."""
    are_nodes = "torch/distributed/elastic" in launcher
    everything = [launcher, *("\n".join(process.lines) for process in ranks.values())]
    reports = sorted((one for text in everything for one in find_all(text, "end")), key=lambda one: one.at)
    for found in reports:
        numbers = _ranks_of(found.words.get("rank", ""))
        status = found.status
        if numbers and not (are_nodes and found.line.startswith("srun: ")):
            for number in numbers:
                process = _end_of(ranks, number, status)
                process.claimed = process.claimed or status != -signal.SIGTERM
                process.report = process.report or (found if found.cause.detail else None)
                process.line = process.line or found.line
        elif untagged.status is None and not _raises(launcher.partition(found.line)[2]):
            untagged.status, untagged.report = status, found


def _raises(after: str) -> bool:
    """Whether the process raised an exception after it had reported that a process ended. That process was then its child."""
    chains = all_chains(after, fatal=True)
    return bool(chains) and find(chains[-1][-1].message, "messenger") is None


def _ranks_of(words: str) -> list[int]:
    """The ranks of `0-3,6`, at most `MOST_RANKS`."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", words):
        found += range(int(first), min(int(last or first), int(first) + MOST_RANKS) + 1)
    return found[:MOST_RANKS]


def _end_of(ranks: dict[int, _Process], rank: int, status: int, *, line: str = "") -> _Process:
    process = ranks.setdefault(rank, _Process())
    if process.status is None:
        process.status = status
    process.line = process.line or line
    return process


def _give_away(ranks: dict[int, _Process], others: dict[str, _Process]) -> None:
    """Gives lines without a rank to the rank that the launcher reports as the first failure, if that has no error of its own."""
    for process in ranks.values():
        if not process.claimed or process.status in (None, 0, -signal.SIGTERM):
            continue
        text = "\n".join(process.lines)
        if all_chains(text, fatal=True) or find(text):
            continue
        own = [line for other in others.values() for line in other.lines]
        mine = _without_help(own)
        if process.status == 1:
            chains = [one for one in all_chains("\n".join(own), fatal=True) if one[-1].message]
            first = next((chain for chain in chains if not is_secondary("\n".join(chain[-1].lines))), [])
            mine = [line for one in first for line in one.lines] or mine
        process.lines += mine
        for other in others.values():
            other.lines = []
        return


def _without_help(lines: Iterable[str]) -> list[str]:
    """The lines without Open MPI's help texts, which are between two rules."""
    kept, inside = [], False
    for line in lines:
        if _HELP_RULE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return kept


def _witness(rank: int | None, process: _Process, launchers: str, source: str = "") -> Witness:
    text = _telling("\n".join(process.lines))
    shows = process.status not in (None, 0) or bool(all_chains(text, fatal=True)) or find(text[-MAX_TAIL:]) is not None
    if rank is None and not shows:
        shows = _shows_failure(text)
    elif rank is not None and process.status is None and shows:
        told = ending(text)  # what it printed before its last progress did not end it
        shows = bool(told.chain) or not told.advanced or find(told.words) is not None
    return Witness(
        rank=rank,
        output=text,
        failed=shows,
        status=process.status,
        order=(process.time, process.begin if process.begin is not None else 1 << 60),
        claimed=process.claimed,
        report=process.report,
        line=process.line,
        source=source,
        context=launchers[-MAX_TAIL:],
    )


def _telling(text: str) -> str:
    """The part of a process's output that shows its failure, at most `TAIL` characters."""
    tail = text[-TAIL:]
    if len(text) <= TAIL or all_chains(tail, fatal=True) or find(tail):
        return tail
    begin = text.rfind("Traceback (most recent call last)")
    if begin < 0 and (found := find(text)):
        begin = text.find(found.line)
    return text[begin : begin + TAIL] if begin >= 0 else tail


def _shows_failure(text: str) -> bool:
    """Whether lines without a rank show a failure, as the last words of a process or as a complaint about another one."""
    if find(text[-MAX_TAIL:], "consequence") is not None:
        return True
    told = ending(text)
    return bool(told.chain or told.handled) or level(told.said) == "error"
