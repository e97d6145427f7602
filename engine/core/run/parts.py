"""Parts of a supervisor that later ones leave out if two of them in a row died there: their ids, and their names in sentences."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """A part of a supervisor. Its value is the id in journals and in `status --json`: journals keep it, so it never changes."""

    NUMBERS = "numbers"
    EXPLANATIONS = "explanations"
    TRACES = "traces"
    TRACKERS = "trackers"
    ORIGINS = "origins"
    OUTPUT = "output"
    FRONT_ENDS = "front_ends"
    SOCKET_WATCH = "socket_watch"
    LAUNCH_RECORD = "launch_record"
    CURVES = "curves"
    REJOIN_WATCH = "rejoin_watch"
    HEALTH_WATCH = "health_watch"
    JOIN_WATCH = "join_watch"
    HOLD_WATCH = "hold_watch"
    FILE_WATCH = "file_watch"
    TRACKER_WATCH = "tracker_watch"
    IMPORT_WATCH = "import_watch"
    GUARDS = "guards"


_WORDS: dict[str, str] = {
    Part.NUMBERS: "reading numbers in the output of ranks",
    Part.EXPLANATIONS: "the explanations of failures",
    Part.TRACES: "reading torch's recorded collectives",
    Part.TRACKERS: "reading trackers' files",
    Part.ORIGINS: "recording code and versions",
    Part.OUTPUT: "reading the output of ranks",
    Part.FRONT_ENDS: "telling front ends what changes",
    Part.SOCKET_WATCH: "the watch of the socket",
    Part.LAUNCH_RECORD: "recording what was launched",
    Part.CURVES: "saving curves",
    Part.REJOIN_WATCH: "the watch of rejoins",
    Part.HEALTH_WATCH: "the watch of health",
    Part.JOIN_WATCH: "the watch of ranks that join",
    Part.HOLD_WATCH: "the watch of runs that hold",
    Part.FILE_WATCH: "the watch of files",
    Part.TRACKER_WATCH: "the watch of trackers' files",
    Part.IMPORT_WATCH: "the watch of imports",
    Part.GUARDS: "the guards",
}

_OLD_NAMES = {
    "reading numbers in the output of ranks": Part.NUMBERS,
    "the explanations of failures": Part.EXPLANATIONS,
    "reading torch's recorded collectives": Part.TRACES,
    "reading trackers' files": Part.TRACKERS,
    "recording code and versions": Part.ORIGINS,
    "reading the output of ranks": Part.OUTPUT,
    "telling front ends what changes": Part.FRONT_ENDS,
    "the watch of the socket": Part.SOCKET_WATCH,
    "recording what was launched": Part.LAUNCH_RECORD,
    "saving curves": Part.CURVES,
    "the watch of rejoins": Part.REJOIN_WATCH,
    "the watch of health": Part.HEALTH_WATCH,
    "the watch of ranks that join": Part.JOIN_WATCH,
    "the watch of runs that hold": Part.HOLD_WATCH,
    "the watch of files": Part.FILE_WATCH,
    "the watch of trackers' files": Part.TRACKER_WATCH,
    "the watch of imports": Part.IMPORT_WATCH,
    "the guards": Part.GUARDS,
}
"""What journals had before parts had ids. It does not follow `_WORDS`, which may change."""

_EVENT = "event"
"""Beginning of the ids of replays."""


def replay_id(number: int, kind: str) -> str:
    """The replay of one event in the journal, as a part of a supervisor.

    Args:
        number: of the event, from 0.
        kind: the name of its type.
    """
    return f"{_EVENT}/{number + 1}/{kind}"


def part_id(name: str) -> str:
    """The id of a part that a journal names: an id, or the words that older versions wrote."""
    return _OLD_NAMES.get(name, name)


def part_words(part: str) -> str:
    """A part in a sentence. One that this version does not know is shown as it is named.

    Args:
        part: its id.
    """
    begin, _, rest = part.partition("/")
    if begin == _EVENT and rest:
        number, _, kind = rest.partition("/")
        return f"event {number} of the journal, {kind}"
    return _WORDS.get(part, part)
