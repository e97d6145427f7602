"""Removes what launchers and collectors of logs put before each line, and uses the rank, the node or the process that it names. Tags that
nothing else looks like (`[rank3]:`, `[1,3]<stderr>:`) count wherever they are. Others (`gpu01: `, a time) count only if most lines of the
text have them, and a traceback appears behind them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.core.patterns import late

MAX_ROUNDS = 4  # most tags in a row, for example one of journald, a time, a node and a rank
MOST_BEHIND = 160  # characters that follow a tag
MOST_SAMPLED = 2000  # lines that decide which tags a text has

_TAGS = late(
    r"\[rank(?P<rank>\d{1,5})\]: ?"  # torch's excepthook, and its messages from C++
    r"|\[r(?P<deck>\d{1,5}) [^\]\n]{1,200}\] "  # rankdeck logs
    r"|\[[A-Za-z_][\w.-]{0,40}?(?P<local>\d{1,5})\]: ?"  # torchrun --tee: role and local rank
    r"|\[[^\],<>\n]{1,120},(?:mpirank:)?(?P<mpi>\d{1,5})(?:,[\w.-]{1,60})?\]<std\w{3}>: ?"  # mpirun --tag-output, SageMaker
    r"|\[(?P<hydra>\d{1,5})\] "  # mpirun.mpich -prepend-rank
    r"|\((?P<source>[^()\n]{0,120}?(?:\([\w.]{0,80}\)[^()\n]{0,40})?\bpid=\d+[^()\n]{0,80})\) "  # Ray, SkyPilot
    r"|E\d{4} [\d:.]{8,18} \d+ (?!\S*torch/distributed/elastic/)[\w./-]{1,200}:\d{1,6}\] "  # logging of torch, before each line
    r"(?=Traceback \(|  |(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b)"
    r"|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,80}:\d{1,6}\] "  # vLLM
    r"|\d{4}-\d\d-\d\dT[\d:.]{8,24}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] "  # CRI: Kubernetes' files
)
_SOURCE_RANK = late(r"\brank=(\d{1,5})")
_INNER_TAG = late(r"\[\d{1,9},\d{1,6}\]<std\w{3}>:|(?:(?<=\S)|(?<=    ))\[\d{1,6}\] ")
"""Open MPI 4 and MPICH tag each write of a process, not each line."""

_NAME = r"(?P<name>[A-Za-z][\w.@-]{0,80})"
_COMMON = tuple(map(late, (
    r"[\[(<{](?i:rank|r)[ :=_#-]{0,2}(?P<rank>\d{1,5})(?:/\d{1,5})?[\])>}](?: ?[:|>])? ?",  # [rank1], (Rank 1):
    r"(?i:rank|r)[ :=_#-]{0,2}(?P<rank>\d{1,5})(?:/\d{1,5})? ?[:|>] ?",  # rank1:, R1 |
    r" {0,4}(?P<label>\d{1,5}): ",  # srun --label
    r"[0-9a-f]{8} (?:\[rank=(?P<rank>\d{1,5})\] )?\|\| ",  # determined
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,30}) [\w.-]{1,80} [\w./@-]{1,80}(?:\[\d+\])?: ",  # journald, syslog
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]?:?[ \t](?:\|[ \t])?",
    r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?[ \t]",
    r"\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?[ \t]{1,9}(?:[\w.-]{1,60}: )?(?:- )?",  # logging
    r"\[pod/(?P<name>[^\]\n]{1,120})\] ?",  # kubectl logs --prefix
    rf"\[{_NAME}(?P<more>[/: ][\w.-]{{1,60}})?\] ?",
    rf"{_NAME} {{0,12}}\| ?",  # compose
    rf"{_NAME}(?P<more>/\d{{1,5}}) ",  # torchx
    rf"{_NAME}: ",  # pdsh, clush
    rf"{_NAME}> ?",
    rf"{_NAME}(?P<more> [a-z][\w-]{{0,40}}) ",  # stern
    rf"{_NAME}\t",  # parallel --tag
    rf"-[ ]{_NAME}[ ]-[ ](?:[A-Z]{{4,8}}[ ]-[ ])?",  # logging, behind a time
)))  # fmt: skip
"""Prefixes that most lines of a text may have."""

_NO_NAMES = frozenset(
    "wandb srun slurmstepd error warning info debug critical fatal usage file raise note hint traceback during the".split()
)
_PYTHON = late(
    r'(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}Z?\]? (?:\| ?)?)?(?:Traceback \(most recent|  File "|[ |+]*Exception Group|\[rank\d)'
)
"""If this follows a tag, it really is a tag."""


class Line(NamedTuple):
    """One line of a process."""

    rank: int | None
    source: str  # node or process that the tags name, if they name no rank: `worker-1`
    text: str
    local: int | None = None  # the local rank that torchrun's tag names


def split(lines: Sequence[str]) -> Iterator[Line]:
    """Each line of a whole text, without its tags and control sequences."""
    are_nodes = any("torch/distributed/elastic" in line for line in lines)  # then a task of srun is a node
    globals_of: dict[int, int] = {}
    for task, source, line in _without_common(lines):
        rank, local = None, None
        while tag := _TAGS.match(line):
            line = line[tag.end() :]
            if tag["local"]:
                local = int(tag["local"])
            elif tag["source"]:
                source = source or tag["source"]
                named = _SOURCE_RANK.search(tag["source"])
                rank = int(named[1]) if named else rank
            elif word := tag["rank"] or tag["deck"] or tag["mpi"] or tag["hydra"]:
                rank = int(word)
                if tag["mpi"] or tag["hydra"]:
                    line = _INNER_TAG.sub("", line)
        if rank is not None and local is not None:
            globals_of[local] = rank
        if rank is None:
            rank = globals_of.get(local, local) if local is not None else None if are_nodes else task
        yield Line(rank, "" if rank is not None else source, line, local)


def untagged(lines: Sequence[str]) -> list[str]:
    """The lines of one process without tags."""
    return [line.text for line in split(lines)]


def _without_common(lines: Sequence[str]) -> Iterator[tuple[int | None, str, str]]:
    """Each line without the tags that most lines have; the rank and the source in them."""
    tags: list[re.Pattern[str]] = []
    sample = [line for line in lines[-MOST_SAMPLED:] if line.strip() and not _TAGS.match(line)]
    if 2 * len(sample) < min(len(lines), MOST_SAMPLED):
        sample = []
    while len(tags) < MAX_ROUNDS and (tag := next((one for one in _COMMON if _is_tag(one, sample)), None)):
        tags.append(tag)
        sample = [line[found.end() :] if (found := tag.match(line)) else line for line in sample]
    for line in lines:
        rank, source = None, ""
        for tag in tags:
            if not (found := tag.match(line)):
                continue
            line = line[found.end() :]
            words = found.groupdict()
            if word := words.get("rank") or words.get("label"):
                rank = int(word)
            elif words.get("name"):
                source = words["name"] + (words.get("more") or "").replace(" ", "/")
        yield rank, source, line


def _is_tag(tag: re.Pattern[str], sample: Sequence[str]) -> bool:
    found = [(one, line[one.end() :]) for line in sample if (one := tag.match(line))]
    if 2 * len(found) <= len(sample) or not found:
        return False
    named = Counter(one["name"].lower() for one, _ in found) if "name" in tag.groupindex else Counter()
    if any(name in _NO_NAMES for name in named) or 2 * len(named) > len(found) + 1:
        return False
    if tag.groupindex.keys() & {"rank", "label"}:
        return True
    # another tag may stand behind one without a name, such as a time
    shows = _PYTHON.match if "name" in tag.groupindex else _PYTHON.search
    return any(shows(rest[:MOST_BEHIND]) for _, rest in found)
