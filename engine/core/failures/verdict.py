"""The root cause among several processes of one job: who failed first and why, and what followed from that.

A process that blames another ("connection closed by peer") never wins over one that does not. Of the others the first is taken,
as the launcher or the supervisor learned of them. Where that one says who is to blame, or only that it waited in vain, the rank
that is to blame is named instead: the one that it names, the one that is behind, or the only one that is silent.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from engine.core.failures import ssh
from engine.core.failures.collectives import Wait
from engine.core.failures.diagnosis import Explanation, explain, is_secondary, plain
from engine.core.failures.known import Found, find, find_all
from engine.core.failures.tracebacks import last_chain
from engine.core.words import rank_words

MAX_NAMED = 8
"""Ranks that are named in one sentence; more are counted."""

MAX_EXPLAINED = 32
"""Ranks that are explained besides the first; more are counted."""

MAX_LINE = 300
"""Characters of a line that is shown as evidence, or of a sentence."""

LOOKED_AT = 1 << 14
"""Bytes at the end of what a rank wrote that tell whether others waited for it."""

_QUIET = (None, 0, -signal.SIGTERM, -signal.SIGKILL)
"""How a rank may have ended that others waited for."""

_PROGRESS = re.compile(
    r"\[PG (?P<group>[^\]\n]{0,120}?) ?Rank \d+\][^\n]{0,200}? last enqueued (?:NCCL )?work: (?P<enqueued>\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>\d{1,18})"
)
"""What torch's watchdog of nccl says of how far a rank has come (N13)."""


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job: what it wrote, and how it ended."""

    rank: int | None
    """None: nobody knows."""
    said: bytes | str
    """The newest part of what it wrote."""
    failed: bool
    status: int | None = None
    """The exit code, or minus the number of a signal; None: it has not ended, or nobody knows how."""
    order: tuple[int | str, ...] = ()
    """Sorts witnesses by when it became known that they failed."""
    claimed: bool = False
    """Whether the launcher took it for the first that failed."""
    secondary: bool | None = None
    """Whether it blames another; None: its words tell."""
    reason: str = ""
    by: str = ""
    """As `explain` takes them."""
    word: Found | None = None
    """What the launcher said of its end."""
    line: str = ""
    """The launcher's line on its end, where that is no known failure by itself."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed."""

    cause: str
    """The id of the known cause, or a word; see `Explanation.cause`."""
    rank: int | None
    """The rank that is to blame, where that is known."""
    headline: str
    detail: str
    hint: str = msgspec.field(name="advice")
    fix: str
    traceback: str
    evidence: tuple[str, ...] = ()
    """Lines that show it, as they were written: raw."""
    followed: tuple[str, ...] = ()
    """What followed from it, one sentence for all ranks that it happened to."""


def find_verdict(witnesses: Sequence[Witness], waits: Sequence[Wait] = ()) -> Verdict | None:
    """The root cause among all processes of a job; None where none failed.

    Args:
        witnesses: every process that is known, those that did not fail too.
        waits: who waited for whom in collectives, where that was recorded.
    """
    failed = [one for one in witnesses if one.failed]
    if not failed:
        return None
    secondary = {id(one): _is_secondary(one) for one in failed}
    first = min(failed, key=lambda one: (secondary[id(one)], not one.claimed, one.rank is None, one.order))
    said = _explain(first)
    others = [one for one in failed if one is not first]
    complaints = [said, *map(_explain, others[:MAX_EXPLAINED])] if said.ranks else []
    headline, rank, detail = said.headline, first.rank, said.detail
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
        headline = _late_words(sorted(late), witnesses)
    elif secondary[id(first)]:
        left = sorted(one.rank for one in witnesses if one.status == 0 and one.rank is not None)
        rank = left[0] if left else None
        headline = (
            f"{rank_words(left, MAX_NAMED)} ended while others still needed it"
            if left
            else f"{headline}; who failed first is not known"
        )
    lines = [said.line if said.line not in said.traceback else "", first.word.line if first.word else first.line]
    return Verdict(
        cause=said.cause,
        rank=rank,
        headline=headline,
        detail=detail,
        hint=said.hint,
        fix=said.fix,
        traceback=said.traceback,
        evidence=tuple(_cut(line) for line in _unlike(lines) if line not in (detail, headline)),
        followed=(
            *_followed(first, others, rank, said, secondary),
            *(wait.sentence for wait in waits if wait.sentence != headline),
        ),
    )


def remarks(witnesses: Iterable[Witness]) -> list[str]:
    """What else processes said that is known, and did no harm by itself."""
    seen = {}
    for one in witnesses:
        for found in find_all(plain(one.said), "remark"):
            seen[found.cause.id] = f"{found.detail}; {found.hint}"
    return list(seen.values())


# --- who is to blame -------------------------------------------------------------------------------------------------


def _explain(one: Witness) -> Explanation:
    """Why one process failed, also where nobody says how it ended, or only its launcher does."""
    is_lost = one.status is None and bool(one.reason)
    said = explain(one.rank, one.status if one.status is not None or is_lost else 1, one.said, one.reason, one.by)
    if one.word is not None and said.cause in ("exit", "E1", "E2"):  # it left nothing itself that says more
        who = "a rank" if one.rank is None else f"rank {one.rank}"
        words = one.word.cause.blames.format(who=who) or said.headline
        is_text = said.cause == "exit" and bool(said.detail.strip())
        detail = said.detail if is_text or said.cause != "exit" else one.word.detail
        return msgspec.structs.replace(said, headline=words, detail=detail, cause=one.word.cause.id)
    if one.status is not None or is_lost or said.traceback:
        return said
    if said.cause.startswith("S"):
        return _of_ssh(said, plain(one.said))
    if one.rank is not None:
        return msgspec.structs.replace(said, headline=f"rank {one.rank} failed")
    return msgspec.structs.replace(said, headline=said.blames or said.detail, detail=said.line)


def _of_ssh(said: Explanation, text: str) -> Explanation:
    """Explains ssh's words as those of a launch that fails."""
    found = find(text, letters="S")
    node = (found.words.get("host") if found else "") or "NODE"
    trouble = ssh.explain(node, status=ssh.EXIT_SSH, said=text, python="python3", setup=False)
    return msgspec.structs.replace(said, headline=trouble.fact, detail=said.line, hint=trouble.hint)


def _is_secondary(one: Witness) -> bool:
    if one.secondary is not None:
        return one.secondary
    silent = one.status == -signal.SIGTERM and not last_chain(plain(one.said), fatal=True)
    return silent or is_secondary(one.said)


def _blamed(said: Explanation, complaints: Iterable[Explanation]) -> frozenset[int]:
    """Whom the first names; where others say the same of different pairs, the one that is in all of them."""
    if not said.ranks:
        return frozenset()
    named = [one.ranks for one in complaints if one.ranks and one.cause == said.cause]
    common = named[0].intersection(*named[1:])
    return common or said.ranks


def _late(witnesses: Sequence[Witness]) -> frozenset[int]:
    """The ranks that others wait for: those that nccl's watchdog has behind, or those that say nothing at all."""
    looks = [(one, one.rank, _look(one.said)) for one in witnesses if one.rank is not None]
    progress: dict[str, dict[int, tuple[int, int]]] = {}
    for _, rank, look in looks:
        for group, enqueued, completed in look.progress:
            progress.setdefault(group, {})[rank] = enqueued, completed
    for of_group in progress.values():
        least, most = min(of_group.values()), max(of_group.values())
        if least < most:
            return frozenset(rank for rank, at in of_group.items() if at == least)
    silent = frozenset(rank for one, rank, look in looks if look.is_quiet and not one.reason and one.status in _QUIET)
    return silent if len(silent) < len(looks) else frozenset()


class _Look(NamedTuple):
    """What the newest words of a rank tell of where it is."""

    progress: tuple[tuple[str, int, int], ...]
    """Of each process group of nccl: its name, and the numbers of the works that were enqueued and completed."""
    is_quiet: bool
    """Whether it neither failed by itself nor complains of others: it waits elsewhere, or has not come."""


@lru_cache(maxsize=8192)
def _look(said: bytes | str) -> _Look:
    """Remembered, since ranks fail one after the other, and each time all are looked at."""
    text = plain(said[-LOOKED_AT:])
    progress = tuple(
        (found["group"], int(found["enqueued"]), int(found["completed"])) for found in _PROGRESS.finditer(text)
    )
    chain = last_chain(text, fatal=True)
    is_interrupted = bool(chain) and chain[-1].message.startswith("KeyboardInterrupt")
    return _Look(progress, is_interrupted or not (chain or progress or is_secondary(text)))


def _late_words(late: Sequence[int], witnesses: Sequence[Witness]) -> str:
    waiting = sorted(one.rank for one in witnesses if one.failed and one.rank is not None and one.rank not in late)
    missing = rank_words(late, MAX_NAMED) if len(late) == 1 else f"one of {rank_words(late, MAX_NAMED)}"
    return f"{rank_words(waiting, MAX_NAMED)} waited for {missing}" if waiting else f"{missing} did not come"


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
            words = "failed too"
        elif one.status == -signal.SIGTERM and explained.cause == "E2":
            words = "{be} ended by the launcher"
        elif secondary[id(one)]:
            words = "lost the store" if explained.cause == "T4" else "lost the connection to it"
        elif explained.cause == said.cause and (said.ranks or said.waits or explained.detail == said.detail):
            words = "failed in the same way"
        elif one.status == first.status and not plain(one.said).strip():
            words = "ended in the same way"
        else:
            words = f"failed too, {explained.headline.removeprefix(f'rank {one.rank} ')}: {explained.detail}".rstrip(
                ": "
            )
        kinds.setdefault(words, []).append(one.rank)
    return [_cut(_folded(sorted(ranks), words)) for words, ranks in kinds.items()]


def _folded(ranks: Sequence[int], words: str) -> str:
    """`3 other ranks lost the connection to it: 0, 1, 2`."""
    count = "1 other rank" if len(ranks) == 1 else f"{len(ranks)} other ranks"
    words = words.replace("{be}", "was" if len(ranks) == 1 else "were")
    return f"{count} {words}: {rank_words(ranks, MAX_NAMED).partition(' ')[2]}"


def _unlike(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
