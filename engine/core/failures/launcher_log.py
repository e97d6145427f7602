"""Splits the log of a job by rank, and reads what its launcher reports about the ends of ranks.

Reads logs of torchrun, of Open MPI's and MPICH's mpirun, of rankdeck, and of a single process. Tags at the beginning of lines name the
rank: the launcher's, or torch's own `[rank3]:`. A line without a tag is the launcher's, or its rank is unknown.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from engine.core.failures.diagnosis import TAIL, is_secondary
from engine.core.failures.known import Found, find, find_all
from engine.core.failures.tracebacks import all_chains
from engine.core.failures.verdict import Witness
from engine.core.terminal_text import SEQUENCE

MAX_TAIL = 1 << 14
"""Characters at the end of a rank's output that are searched if its exit status is unknown."""

MAX_LINE = 8192
"""Characters of a line that are read."""

_TAGS = re.compile(
    r"\[rank(?P<rank>\d{1,5})\]: ?"  # torch's excepthook, and its messages from C++
    r"|\[r(?P<deck>\d{1,5}) [^\]\n]{1,200}\] "  # rankdeck logs
    r"|\[[A-Za-z_][\w.-]{0,40}?(?P<local>\d{1,5})\]: ?"  # torchrun --tee: role and local rank
    r"|\[[^\],<>\n]{1,120},(?P<mpi>\d{1,5})\]<std\w{3}>: ?"  # mpirun --tag-output
    r"|\[(?P<hydra>\d{1,5})\] "  # mpirun.mpich -prepend-rank
)
_INNER_TAG = re.compile(r"\[\d{1,9},\d{1,6}\]<std\w{3}>:|(?:(?<=\S)|(?<=    ))\[\d{1,6}\] ")
"""Open MPI 4 and MPICH tag each write of a process, not each line."""

_LABEL = re.compile(r" {0,4}(\d{1,5}): ")
"""The tag of `srun --label`; it counts only if most lines have it."""

_BLOCK = re.compile(r"^(?:\[\d+\]:|Root Cause \(first observed failure\):)$")
_FIELD = re.compile(r"^  (?P<name>time|rank|exitcode|error_file|traceback) *: ?(?P<value>.*)$")
_RULE = re.compile(r"^[=-]{20,}$")
_HELP_RULE = re.compile(r"^-{60,}$")
_TRACEBACK = "Traceback (most recent"
_AGENT_EXCEPTION = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_AGENT_LINE = re.compile(r"^[WEI]\d{4} \S+ \d+ .{0,200}torch/distributed/elastic/|^rankdeck: ")
_LOCAL_END = re.compile(r"failed \(exitcode: (?P<status>-?\d{1,9})\) local_rank: (?P<local>\d{1,5}) ")
_HYDRA_SIGNAL = re.compile(r"EXIT STRING: [^\n]{1,80}\(signal (?P<signal>\d{1,3})\)")
_HYDRA_RANK = re.compile(r"^=\s+RANK (?P<rank>\d{1,5}) PID \d+ RUNNING AT", re.MULTILINE)
_LONGEST_TRACEBACK = 200
"""Longest traceback of torchrun itself, in lines."""

_DECK_END = re.compile(r"^rankdeck: [^\n]{1,200} failed: (?P<ends>rank \d[^\n]{0,300})", re.MULTILINE)


class _Process:
    """What the log shows about one rank, or about lines without a tag."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.status: int | None = None
        self.claimed = False
        self.time = ""
        self.report: Found | None = None
        self.line = ""
        self.begin: int | None = None
        """Number of the line of its first error."""


def read_log(text: str) -> list[Witness]:
    """The processes in a log.

    Args:
        text: the log, or its beginning and its end.

    Returns:
        Every rank in order; then the lines without a tag as one process, if they show a failure.
    """
    ranks: dict[int, _Process] = {}
    untagged = _Process()
    for number, (rank, line) in enumerate(_tagged(_clean_lines(text))):
        process = untagged if rank is None else ranks.setdefault(rank, _Process())
        if process.begin is None and (line.startswith(_TRACEBACK) or "Error" in line):
            process.begin = number
        process.lines.append(line)
    own = _read_torchrun(untagged.lines, ranks)
    launcher = "\n".join(untagged.lines)
    _read_ends(launcher, ranks, untagged)
    _give_away("\n".join(own), ranks, untagged)
    witnesses = [_witness(rank, process) for rank, process in sorted(ranks.items())]
    nobody = _witness(None, untagged)
    return [*witnesses, nobody] if nobody.failed else witnesses


def _clean_lines(text: str) -> list[str]:
    """The lines without control sequences; each state of a progress bar is a line."""
    plain = SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text
    return [line[:MAX_LINE] for line in plain.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def _labelled(lines: list[str]) -> Iterator[tuple[int | None, str]]:
    """Each line without the task number of `srun --label`. With torchrun a task is a node, not a rank."""
    labels = [_LABEL.match(line) for line in lines]
    if 2 * sum(label is not None for label in labels) <= sum(bool(line.strip()) for line in lines):
        yield from ((None, line) for line in lines)
        return
    are_nodes = any("torch/distributed/elastic" in line for line in lines)
    for line, label in zip(lines, labels, strict=True):
        yield (None, line) if label is None else (None if are_nodes else int(label[1]), line[label.end() :])


def _tagged(lines: list[str]) -> Iterator[tuple[int | None, str]]:
    """Each line without its tags, and the rank that they name. A global rank wins over a local one."""
    globals_of: dict[int, int] = {}
    for task, line in _labelled(lines):
        rank, local = None, None
        while tag := _TAGS.match(line):
            line = line[tag.end() :]
            if tag["local"]:
                local = int(tag["local"])
            else:
                rank = int(tag["rank"] or tag["deck"] or tag["mpi"] or tag["hydra"])
                if tag["mpi"] or tag["hydra"]:
                    line = _INNER_TAG.sub("", line)
        if rank is not None and local is not None:
            globals_of[local] = rank
        if rank is None:
            rank = task if local is None else globals_of.get(local, local)
        yield rank, line


# --- reports of launchers --------------------------------------------------------------------------------------------


def _read_torchrun(lines: list[str], ranks: dict[int, _Process]) -> list[str]:
    """Reads the ends of ranks from torchrun's own lines. Returns the other lines."""
    own: list[tuple[int, str]] = []
    begin: int | None = None
    rules = 0
    for at, line in enumerate(lines):
        if line.startswith(_AGENT_EXCEPTION):
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
                _end_of(ranks, int(found["local"]), int(found["status"]), line=line)
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
    """Reads the ends of ranks from messages of mpirun and rankdeck."""
    everything = [launcher, *("\n".join(process.lines) for process in ranks.values())]
    for found in (one for text in everything for one in find_all(text, "end")):
        number = found.words.get("rank", "")
        if not number and (hydra := _HYDRA_RANK.search(launcher)):
            number = hydra["rank"]
        status = _status(found, launcher)
        if number:
            process = _end_of(ranks, int(number), status)
            process.claimed, process.report = True, process.report or found
        elif untagged.status is None:
            untagged.status, untagged.report = status, found
    if ends := _DECK_END.search(launcher):
        for rank, word in re.findall(r"rank (\d{1,5}):? (exit \d{1,3}|SIG[A-Z]{2,6})", ends["ends"]):
            if status := _status_of_word(word):
                _end_of(ranks, int(rank), status, line=ends[0])


def _status(found: Found, launcher: str) -> int:
    if number := found.words.get("signal"):
        return -int(number)
    if hydra := _HYDRA_SIGNAL.search(launcher):
        return -int(hydra["signal"])
    return int(found.words.get("status") or 1)


def _status_of_word(word: str) -> int:
    """The status of `exit 3` or `SIGKILL`; 0 for an unknown signal."""
    if word.startswith("exit"):
        return int(word.removeprefix("exit "))
    return -signal.Signals[word].value if word in signal.Signals.__members__ else 0


def _end_of(ranks: dict[int, _Process], rank: int, status: int, *, line: str = "") -> _Process:
    process = ranks.setdefault(rank, _Process())
    if process.status is None:
        process.status = status
    process.line = process.line or line
    return process


def _give_away(own: str, ranks: dict[int, _Process], untagged: _Process) -> None:
    """Gives lines without a tag to the rank that the launcher reports as the first failure, if that has no error of its own."""
    untagged.lines = own.split("\n")
    for process in ranks.values():
        if not process.claimed or process.status in (None, 0, -signal.SIGTERM):
            continue
        text = "\n".join(process.lines)
        if all_chains(text, fatal=True) or find(text):
            continue
        mine = _without_help(untagged.lines)
        if process.status == 1:
            chains = (chain for chain in all_chains(own, fatal=True) if not is_secondary("\n".join(chain[-1].lines)))
            mine = [line for one in next(chains, []) for line in one.lines] or mine
        process.lines += mine
        untagged.lines = []
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


def _witness(rank: int | None, process: _Process) -> Witness:
    text = _telling("\n".join(process.lines))
    if rank is None:
        failed = process.status is not None or bool(all_chains(text, fatal=True)) or _shows_failure(text)
    else:
        has_error = bool(all_chains(text, fatal=True)) or find(text[-MAX_TAIL:]) is not None
        failed = process.status not in (None, 0) or has_error
    return Witness(
        rank=rank,
        output=text,
        failed=failed,
        status=process.status,
        order=(process.time, process.begin if process.begin is not None else 1 << 60),
        claimed=process.claimed,
        report=process.report,
        line=process.line,
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
    return find(text) is not None or find(text[-MAX_TAIL:], "consequence") is not None
