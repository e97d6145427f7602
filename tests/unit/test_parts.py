"""Ids of a supervisor's parts: journals keep them, and sentences have their words."""

from __future__ import annotations

import pytest

from engine.core.run import events as ev
from engine.core.run.machine import replay
from engine.core.run.parts import Part, part_words, replay_id
from engine.core.views.story import tell_all
from tests.run_story import TWO, Story

OLD_WORDS = {
    "reading numbers in the output of ranks": "numbers",
    "the explanations of failures": "explanations",
    "reading torch's recorded collectives": "traces",
    "reading trackers' files": "trackers",
    "recording code and versions": "origins",
    "reading the output of ranks": "output",
    "telling front ends what changes": "front_ends",
    "the watch of the socket": "socket_watch",
    "recording what was launched": "launch_record",
    "saving curves": "curves",
    "the watch of rejoins": "rejoin_watch",
    "the watch of health": "health_watch",
    "the watch of ranks that join": "join_watch",
    "the watch of runs that hold": "hold_watch",
    "the watch of files": "file_watch",
    "the watch of trackers' files": "tracker_watch",
    "the watch of imports": "import_watch",
    "the guards": "guards",
}
"""What journals had before parts had ids, and the ids, which journals have now: neither changes any more."""


def test_the_id_of_a_part_never_changes() -> None:
    assert sorted(Part) == sorted(OLD_WORDS.values())


@pytest.mark.parametrize("words", OLD_WORDS)
def test_a_journal_that_names_a_part_in_words_leaves_out_that_part(words: str) -> None:
    story = Story(TWO).run()
    by_id, by_words = ([*story.journal, ev.PartLeftOut(at=5.0, part=part)] for part in (OLD_WORDS[words], words))
    state = replay(by_words)
    assert state is not None
    assert state == replay(by_id)
    assert state.parts_left_out == (OLD_WORDS[words],)
    assert tell_all(by_words)[-1] == tell_all(by_id)[-1]


def test_each_part_has_words_of_its_own() -> None:
    words = {part_words(part) for part in Part}
    assert len(words) == len(Part)
    assert not words & set(Part)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (replay_id(3, "StoreOpened"), "event 4 of the journal, StoreOpened"),
        ("event 4 of the journal, StoreOpened", "event 4 of the journal, StoreOpened"),
        ("a part of a later version", "a part of a later version"),
    ],
)
def test_what_is_no_part_of_this_version_is_named_all_the_same(part: str, words: str) -> None:
    assert part_words(part) == words
