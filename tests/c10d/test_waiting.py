"""How long a rank has waited for others in collectives: `_agreement` measures it, `_background` reports it."""

import itertools
import queue
from types import SimpleNamespace

import pytest

from rankdeck.c10d import _background
from rankdeck.c10d._agreement import Agreement
from rankdeck.c10d._work import NO_VOTES


@pytest.mark.parametrize("look", [1, 5])
def test_only_a_rank_that_does_not_arrive_last_has_waited(look: int) -> None:
    looks = itertools.count(1)
    methods = {"start": lambda *_: None, "_is_answered": lambda _: next(looks) == look, "_result": lambda _: NO_VOTES}
    agreement = type("Answered", (Agreement,), methods)(SimpleNamespace(tags=1 << 20), 0, 1)
    agreement.reach("barrier()", 0, lambda: False, 0.0)
    assert (agreement.waited > 0.0) == (look > 1)


def test_a_rank_reports_its_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[dict[str, float]] = queue.SimpleQueue()
    monkeypatch.setattr(_background, "REPORT_INTERVAL", 0.0)
    monkeypatch.setattr(_background, "log", lambda **values: told.put(values))
    background, member = _background.Background("waits"), SimpleNamespace(waited=lambda: 1.5)
    member.check_deadlines = lambda now: None
    background.add(member)
    while told.get(timeout=60) != {"rankdeck.waited": 1.5}:
        pass
    background.forget(member)
    background._over = True
