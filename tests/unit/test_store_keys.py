"""Signatures of what rankdeck puts into the c10d store."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.runs.paths import RunPaths
from engine.supervisor.nodes.store_keys import NEWS, StoreKeys
from rankdeck import store_host
from rankdeck.elastic._store import board as _board


class Shelf(dict[str, str]):
    """A store that can only be written to: nothing in it decides how often."""

    set = dict.__setitem__


@pytest.fixture
def keys(tmp_path: Path) -> StoreKeys:
    return StoreKeys(RunPaths(tmp_path))


def published(keys: StoreKeys, attempt: int, number: int) -> Any:
    """What a rank finds in the store."""
    shelf = Shelf()
    store_host.publish(shelf, number, json.loads(json.dumps(keys.signed(attempt, number, ("lost", 3), 2))))
    assert list(shelf) == [f"{NEWS}/{number}/0", f"{NEWS}/{number}/1"]
    assert len(set(shelf.values())) == 1
    return shelf[f"{NEWS}/{number}/0"].encode()


def test_ranks_accept_signed_news_under_their_own_number_only(keys: StoreKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make(0)
    monkeypatch.setenv(_board.KEY, keys.of(0))
    news = published(keys, 0, 2)
    assert json.loads(_board.signed_text(f"{NEWS}/2", news) or "") == ["lost", 3]
    assert _board.signed_text(f"{NEWS}/3", news) is None
    assert _board.signed_text(f"{NEWS}/2", news.replace(b"3", b"4")) is None


@pytest.mark.parametrize("value", [b"", b'["lost", 3]', b' ["lost", 3]', b"\xff\xfe x", b"0" * 64 + b' ["lost", 3]'])
def test_ranks_ignore_what_is_not_signed(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_board.KEY, "secret")
    assert _board.signed_text("name", value) is None


def test_the_secret_is_private_differs_between_attempts_and_outlives_the_supervisor(tmp_path: Path) -> None:
    keys = StoreKeys(RunPaths(tmp_path))
    keys.make(0)
    keys.make(1)
    file = RunPaths(tmp_path).store_key(0)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert len(keys.of(0)) == 64
    assert keys.of(0) != keys.of(1)
    again = StoreKeys(RunPaths(tmp_path))
    again.make(0)
    assert again.of(0) == keys.of(0)


def test_nothing_is_signed_in_an_attempt_of_an_older_rankdeck(keys: StoreKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_board.KEY, raising=False)
    assert keys.signed(0, 2, ("lost", 3), 4) == ("lost", 3, 4)
    assert published(keys, 0, 2) == b'["lost", 3]'
    assert _board.signed_text(f"{NEWS}/2", b'["lost", 3]') == '["lost", 3]'
