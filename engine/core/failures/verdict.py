"""Finds the root cause among several processes of one job, and what followed from it.

A process whose error blames another one ("connection closed by peer") is never the cause if there is one that does not. Of those, the
first failure counts, in the order in which the launcher or the supervisor noticed them. If its error names other ranks, or it only
timed out waiting, the rank at fault is named instead: the one in the error, the one that is behind, or the only one without output.
"""

import signal
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from engine.core.failures import ssh
from engine.core.failures.collectives import MAX_NAMED, Wait
from engine.core.failures.diagnosis import Explanation, explain, is_secondary, plain
from engine.core.failures.known import Confidence, Found, find, find_all
from engine.core.failures.text.evidence import ending
from engine.core.failures.text.tracebacks import last_chain
from engine.core.patterns import late
from engine.core.words import limited, rank_words

MAX_EXPLAINED = 32  # ranks that are explained besides the first; the others are counted
MAX_LINE = 300  # longest line of evidence and longest sentence, in characters

_MAYBE_LATE = (None, 0, -signal.SIGTERM, -signal.SIGKILL)  # statuses of ranks that others may have waited for

_PROGRESS = late(
    r"\[PG (?P<group>[^\]\n]{0,120}?) ?Rank \d+\][^\n]{0,200}? last enqueued (?:NCCL )?work: (?P<enqueued>\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>\d{1,18})"
)
"""The progress of a rank in the messages of torch's nccl watchdog (N13)."""


_OWN_FRAME = late(
    r'  File "(?!.{0,400}?/(?:site-packages|lib/python[\d.]+)/)(?:.{0,400}/)?(?P<file>[^"/]{1,200})", line (?P<line>\d{1,7})'
)
"""A frame of the program, not of a library."""


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job: its output, and how it ended."""

    rank: int | None  # None: unknown
    output: bytes | str  # the end of its output
    failed: bool
    status: int | None = None
    """The exit code, or minus the number of a signal; None: it has not ended, or its status is unknown."""
    order: tuple[int | str, ...] = ()  # sorts processes by the time when their failure was noticed
    claimed: bool = False  # whether the launcher names it as the first failure
    secondary: bool | None = None  # whether its failure is a consequence of another; None: its output decides
    reason: str = ""
    by: str = ""  # see `explain`
    report: Found | None = None  # the launcher's report about its end
    line: str = ""  # the launcher's line about its end, if that is no known failure
    source: str = ""  # if its rank is unknown: the node or the file that its lines come from
    context: str = ""  # the launcher's output
    python: str = ""  # the Python that it ran; empty: not known


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    cause: str  # the id of the known cause, or a word; see `Explanation.cause`
    rank: int | None  # the rank at fault; None: unknown
    headline: str
    detail: str
    hint: str = msgspec.field(name="advice")  # the next step; `advice` in JSON
    fix: str
    traceback: str
    confidence: Confidence = "certain"
    heals: bool = True  # whether the same run may succeed if it starts again, without a change by somebody
    evidence: tuple[str, ...] = ()  # lines of output that show it: raw
    followed: tuple[str, ...] = ()  # its consequences, one sentence for all ranks with the same one

    @property
    def hedged(self) -> str:
        """The detail for people, with "probably" before what is only the most common reason."""
        is_guess = self.confidence == "likely" and self.cause not in ("exception", "exit")
        return f"probably: {self.detail}" if is_guess and self.detail else self.detail


def find_verdict(witnesses: Sequence[Witness], waits: Sequence[Wait] = ()) -> Verdict | None:
    """The root cause among all processes of a job; None if none failed. `witnesses`: every known process, including those that did not
    fail. `waits`: which ranks waited for which in collectives, if recorded."""
    failed = [one for one in witnesses if one.failed]
    if not failed:
        return None
    if all(map(_is_secondary, failed)):
        failed += [one for one in witnesses if not one.failed and one.status is None and _has_raised(one)]
    secondary = {id(one): _is_secondary(one) for one in failed}
    first = min(
        failed, key=lambda one: (secondary[id(one)], _is_messenger(one), not one.claimed, one.rank is None, one.order)
    )
    said = _explain(first)
    if said.waits:  # a rank that raised an exception of its own is the better cause, even if it was noticed later
        own = [one for one in sorted(failed, key=lambda one: one.order) if not secondary[id(one)]]
        first = next((one for one in own[:MAX_EXPLAINED] if _fails_by_itself(_explain(one))), first)
        said = _explain(first)
    others = [one for one in failed if one is not first]
    if first.rank is None and said.rank is None:  # the launcher may repeat the same exception with the rank
        named = (
            one for one in map(_explain, others[:MAX_EXPLAINED]) if one.rank is not None and one.detail == said.detail
        )
        said = next(named, said)
    complaints = [said, *map(_explain, others[:MAX_EXPLAINED])] if said.ranks else []
    headline, rank, detail = said.headline, first.rank if said.rank is None else said.rank, said.detail
    if blamed := _blamed(said, complaints):
        rank = min(blamed)
        headline = said.blames.format(who=rank_words(sorted(blamed), MAX_NAMED))
    elif waits and (said.waits or secondary[id(first)]):
        headline, missing = waits[0].sentence, waits[0].late
        if len(missing) == 1:
            rank = missing[0]
        elif secondary[id(first)]:
            rank = None
    elif said.waits and 0 < len(late := _late(witnesses)) <= MAX_NAMED:
        rank = min(late) if len(late) == 1 else rank
        headline, doing = _late_words(sorted(late), witnesses)
        detail = f"{detail}; {doing}" if doing else detail
    elif secondary[id(first)]:
        left = sorted(one.rank for one in witnesses if one.status == 0 and one.rank is not None)
        rank = left[0] if left else None
        headline = f"{headline}; which rank failed first is not known"
        if left:
            headline = f"{rank_words(left, MAX_NAMED)} ended while others still needed it"
    lines = [said.line if said.line not in said.traceback else "", first.report.line if first.report else first.line]
    if said.confidence == "seen" or (said.cause in ("E1", "E2") and not said.traceback):
        lines += said.last
    unlike = dict.fromkeys(line.strip() for line in lines)
    return Verdict(
        cause=said.cause,
        rank=rank,
        headline=headline,
        detail=detail,
        hint=said.hint,
        fix=said.fix,
        traceback=said.traceback,
        confidence=said.confidence,
        heals=said.heals,
        evidence=tuple(limited(line, MAX_LINE) for line in unlike if line and line not in (detail, headline)),
        followed=(
            *_followed(first, others, rank, said, secondary),
            *(wait.sentence for wait in waits if wait.sentence != headline),
        ),
    )


def remarks(witnesses: Iterable[Witness]) -> list[str]:
    """Known problems in the output of processes that did no harm by themselves."""
    seen = {}
    for one in witnesses:
        for found in find_all(plain(one.output), "remark"):
            seen[found.cause.id] = f"{found.detail}; {found.hint}"
    return list(seen.values())


# --- the rank at fault -----------------------------------------------------------------------------------------------


def _explain(one: Witness) -> Explanation:
    """Why one process failed, even if its status is unknown or only its launcher reports it."""
    is_lost = one.status is None and bool(one.reason)
    status = one.status if one.status is not None or is_lost else 1
    said = explain(one.rank, status, one.output, one.reason, one.by, one.context, one.python)
    if one.report is not None and said.cause in ("exit", "E1", "E2"):  # its own output explains no more
        who = "a rank" if one.rank is None else f"rank {one.rank}"
        headline = one.report.cause.blames.format(who=who) or said.headline
        detail = (
            said.detail if said.detail.strip() and said.cause != "exit" else said.detail.strip() or one.report.detail
        )
        hint = one.report.hint if said.cause == "exit" else said.hint
        return msgspec.structs.replace(said, headline=headline, detail=detail, hint=hint, cause=one.report.cause.id)
    if one.status is not None or is_lost or said.traceback:
        return said
    if said.cause.startswith("S"):
        text = plain(one.output)
        found = find(text, letters="S")
        node = (found.words.get("host") if found else "") or "NODE"
        trouble = ssh.explain(node, status=ssh.EXIT_LAUNCHER, said=text, python="python3", setup=False)
        return msgspec.structs.replace(said, headline=trouble.fact, detail=said.line, hint=trouble.hint)
    if said.cause in ("exception", "exit"):
        if said.cause == "exit":
            where = f"{one.source}: " if one.source else f"rank {one.rank}: " if one.rank is not None else ""
            return msgspec.structs.replace(said, headline=f"{where}the output ends without a known failure")
        return said
    if one.rank is not None:
        return msgspec.structs.replace(said, headline=f"rank {one.rank} failed")
    return msgspec.structs.replace(said, headline=said.blames or said.detail, detail=said.line)


@lru_cache(maxsize=256)
def _reports_only(output: bytes | str) -> bool:
    """Whether the exception that ended a process only reports that another one failed."""
    chain = ending(plain(output)).chain
    return bool(chain) and find(chain[-1].message, "messenger", context=plain(output)) is not None


def _fails_by_itself(said: Explanation) -> bool:
    return bool(said.raised) and not said.waits and not said.raised.startswith("KeyboardInterrupt")


def _is_messenger(one: Witness) -> bool:
    return one.status in (None, 1) and _reports_only(one.output)


def _is_secondary(one: Witness) -> bool:
    if one.secondary is not None:
        return one.secondary
    text = plain(one.output)
    silent = one.status == -signal.SIGTERM and not last_chain(text, fatal=True)
    if silent:
        return find(ending(text).words, letters="W", ended_by="TERM") is None
    return is_secondary(one.output, status=one.status)


def _has_raised(one: Witness) -> bool:
    """Whether a rank had raised an exception of its own, and was stopped before its process had ended."""
    chain = ending(plain(one.output)).chain
    return bool(chain) and not chain[0].message.startswith("KeyboardInterrupt") and not is_secondary(one.output)


def _blamed(said: Explanation, complaints: Iterable[Explanation]) -> frozenset[int]:
    """The ranks that the first failure names; if several processes name different pairs, the ranks in all of them."""
    if not said.ranks:
        return frozenset()
    named = [one.ranks for one in complaints if one.ranks and one.cause == said.cause]
    common = named[0].intersection(*named[1:])
    return common or said.ranks


def _late(witnesses: Sequence[Witness]) -> frozenset[int]:
    """The ranks that others wait for: those that are behind according to nccl's watchdog, or those without an error."""
    signs = [(one, one.rank, _signs(one.output)) for one in witnesses if one.rank is not None]
    progress: dict[str, dict[int, tuple[int, int]]] = {}
    for _, rank, sign in signs:
        for group, enqueued, completed in sign.progress:
            progress.setdefault(group, {})[rank] = enqueued, completed
    for of_group in progress.values():
        least, most = min(of_group.values()), max(of_group.values())
        if least < most:
            return frozenset(rank for rank, at in of_group.items() if at == least)
    silent = frozenset(
        rank for one, rank, sign in signs if sign.is_quiet and not one.reason and one.status in _MAYBE_LATE
    )
    return silent if len(silent) < len(signs) else frozenset()


class _Signs(NamedTuple):
    progress: tuple[tuple[str, int, int], ...]
    """For each nccl process group: its name, and the numbers of the last enqueued and completed work."""
    is_quiet: bool
    """Whether there is no error, neither its own nor about others: it waits elsewhere, or has not reached the collective."""


@lru_cache(maxsize=8192)
def _signs(output: bytes | str) -> _Signs:
    """Cached, because ranks fail one after the other, and each failure examines all of them."""
    text = plain(output)
    progress = tuple(
        (found["group"], int(found["enqueued"]), int(found["completed"])) for found in _PROGRESS.finditer(text)
    )
    chain = last_chain(text, fatal=True)
    is_interrupted = bool(chain) and chain[-1].message.startswith("KeyboardInterrupt")
    return _Signs(progress, is_interrupted or not (chain or progress or is_secondary(text)))


def _late_words(late: Sequence[int], witnesses: Sequence[Witness]) -> tuple[str, str]:
    """Who waited for whom, and what the late rank did meanwhile."""
    waiting = sorted(one.rank for one in witnesses if one.failed and one.rank is not None and one.rank not in late)
    missing = rank_words(late, MAX_NAMED) if len(late) == 1 else f"one of {rank_words(late, MAX_NAMED)}"
    headline = f"{rank_words(waiting, MAX_NAMED)} waited for {missing}" if waiting else f"{missing} did not arrive"
    text = next((plain(one.output) for one in witnesses if len(late) == 1 and one.rank == late[0]), "")
    chain, bar = last_chain(text, fatal=True), ending(text).bar
    if bar is None:
        if not chain or not chain[-1].message.startswith("KeyboardInterrupt"):
            return headline, ""
        place = find("\n".join(chain[-1].lines), "place")  # where its launcher has stopped it
        where = [found for line in chain[-1].lines if (found := _OWN_FRAME.match(line))]
        words = f"{missing} was {place.detail if place else 'busy'}"
        return headline, words + (f" ({where[-1]['file']}:{where[-1]['line']})" if where else "")
    known = find(bar.label, "activity")
    doing = f"{known.detail if known else 'busy'} ({bar.label or 'its bar'}: {bar.at}/{bar.total})"
    return f"{headline}, which was {doing}", f"by its bar it needed {bar.left} more" if bar.left else ""


# --- what followed ---------------------------------------------------------------------------------------------------


def _followed(
    first: Witness, others: Sequence[Witness], rank: int | None, said: Explanation, secondary: dict[int, bool]
) -> list[str]:
    """A sentence for each kind of failure besides the first."""
    kinds: dict[str, list[int]] = {}
    for number, one in enumerate(others):
        if one.rank is None or one.rank == rank:
            continue
        explained = _explain(one) if number < MAX_EXPLAINED else None
        if explained is None:
            words = "lost the connection to it" if secondary[id(one)] else "failed too"
        elif one.status == -signal.SIGTERM and explained.cause == "E2":
            words = "{be} ended by the launcher"
        elif secondary[id(one)]:
            words = "lost the store" if explained.cause == "T4" else "lost the connection to it"
        elif explained.cause == said.cause and (said.ranks or said.waits or explained.detail == said.detail):
            words = "failed in the same way"
        elif one.status == first.status and not plain(one.output).strip():
            words = "ended in the same way"
        else:
            words = f"{explained.headline.removeprefix(f'rank {one.rank} ')}: {explained.detail}"
            words = f"failed too, {words}".rstrip(": ")
        kinds.setdefault(words, []).append(one.rank)
    return [limited(_folded(sorted(ranks), words), MAX_LINE) for words, ranks in kinds.items()]


def _folded(ranks: Sequence[int], words: str) -> str:
    """`3 other ranks lost the connection to it: 0, 1, 2`."""
    count = "1 other rank" if len(ranks) == 1 else f"{len(ranks)} other ranks"
    words = words.replace("{be}", "was" if len(ranks) == 1 else "were")
    return f"{count} {words}: {rank_words(ranks, MAX_NAMED).partition(' ')[2]}"
