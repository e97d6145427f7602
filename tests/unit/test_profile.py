"""A profile is accepted whole, or refused with one sentence that says where and what."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.core.errors import ProfileError
from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.profile import SCHEMA, Profile, all_keys, to_toml_data, type_words
from tests.support import entries, from_table, parse_profile

DATA = Path(__file__).parents[1] / "data"

GOOD = entries("unit/profile", "good")

VALID: dict[tuple[str, ...], Any] = {("schema",): SCHEMA} | {
    tuple(key.split(".")): value for key, value in entries("unit/profile", "valid").items()
}
"""One valid value for every key."""


def parse(text: str, *overrides: str) -> Profile:
    return parse_profile(text, file="p.toml", overrides=overrides)


def refused(text: str, *overrides: str) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        parse(text, *overrides)
    return caught.value


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with one value set."""
    data = copy.deepcopy(data)
    table = data
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value
    return data


# --- what is accepted ------------------------------------------------------------------------------------------------


def test_a_profile_is_read_completely() -> None:
    profile = parse(GOOD)
    assert profile.name == "gpt"
    assert profile.layout.ranks_per_node == 4
    assert profile.recipe.args == ("--steps", "100")
    assert profile.launch.stop_ladder == (("SIGTERM", 10.0), ("SIGKILL", 5.0))
    assert profile.env == {"OMP_NUM_THREADS": "1"}


def test_the_shortest_profile_says_what_to_run() -> None:
    profile = parse('schema = 1\nname = "x"\nrecipe.script = "train.py"\n')
    assert profile.layout.nodes == "localhost"
    assert profile.launch.on_failure == "hold"


def test_every_key_has_a_valid_value_in_this_test() -> None:
    assert set(VALID) == set(all_keys())


@pytest.mark.parametrize("path", list(VALID), ids=".".join)
def test_every_key_is_accepted_with_a_valid_value(path: tuple[str, ...]) -> None:
    data: dict[str, Any] = {"schema": 1, "name": "x", "recipe": {"script": "train.py"}}
    if path in {("recipe", "name"), ("recipe", "module")}:
        del data["recipe"]
    text = tomlkit.dumps(put(data, path, VALID[path]))
    value: Any = parse(text)
    for part in path:
        value = getattr(value, part)
    wanted = VALID[path]
    assert value == (
        tuple(tuple(i) if isinstance(i, list) else i for i in wanted) if isinstance(wanted, list) else wanted
    )


@pytest.mark.parametrize("path", list(VALID), ids=".".join)
def test_every_key_has_words_for_its_type(path: tuple[str, ...]) -> None:
    words = type_words(all_keys()[path])
    assert words
    assert "NoneType" not in words
    assert "Literal" not in words


@from_table
def test_nodes_are_accepted_in_each_of_their_forms(nodes: str | list[str]) -> None:
    profile_from_data(put({"schema": 1, "name": "x", "recipe": {"name": "gpt"}}, ("layout", "nodes"), nodes), "p")


@pytest.mark.parametrize("job", [1, 1234, "1234", "1234_5", "current"])
def test_a_slurm_job_is_a_number_or_a_task_or_the_one_that_we_are_in(job: int | str) -> None:
    profile_from_data(put({"schema": 1, "name": "x", "recipe": {"name": "gpt"}}, ("layout", "slurm"), job), "p")


# --- what is refused, and where --------------------------------------------------------------------------------------

HEAD = 'schema = 1\nname = "x"\n'
RUNS = '[recipe]\nname = "gpt"\n'


def _refused_profiles() -> list[tuple[str, str, str, str]]:
    """The rows of `tests/data/malformed_profiles.tsv`."""
    lines = DATA.joinpath("malformed_profiles.tsv").read_text(encoding="utf-8").split("\n")
    rows = []
    for line in lines[:-1]:
        if not line.startswith("#"):
            cell, place, key, words, *_ = (*line.split("\t"), "", "")
            text = json.loads('"' + cell.replace('"', '\\"') + '"')
            begins = {"+": HEAD + RUNS, "&": HEAD}.get(text[:1], "")
            rows.append((begins + (text[1:] if begins else text), place, key, words))
    long = f"{HEAD}{RUNS}[layout]\nslurm = 0x{'f' * 5000}\n"
    return [*rows, (long, "p.toml:6", "layout.slurm", "is not a job")]


@pytest.mark.parametrize(("text", "place", "key", "words"), _refused_profiles())
def test_a_malformed_profile_is_refused_with_place_and_key(text: str, place: str, key: str, words: str) -> None:
    error = refused(text)
    assert (f"{error.file}:{error.line}" if error.line else error.file) == place
    assert error.key == key
    assert words in error.reason
    assert error.message.startswith(f"{place}: {key}")
    assert error.message.isprintable()
    assert "`" not in error.reason  # msgspec's way to name a type, which is not a user's
    assert error.exit_status == 2


@from_table
def test_the_nearest_valid_thing_is_named(text: str, hint: str) -> None:
    assert refused(text).hint == hint


def test_a_profile_that_is_nested_too_deeply_is_refused() -> None:
    assert "nested too deeply" in refused("x = " + "[" * 100_000).reason


# --- overrides of the command line -----------------------------------------------------------------------------------


@from_table
def test_an_override_sets_one_value(word: str, path: list[str], value: object) -> None:
    found: Any = parse(GOOD, word)
    for part in path:
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert (list(found) if isinstance(found, tuple) else found) == value


def test_later_overrides_win() -> None:
    assert parse(GOOD, "name=a", "name=b").name == "b"


@from_table
def test_a_wrong_override_is_named_instead_of_the_file(word: str, file: str, words: str) -> None:
    error = refused(GOOD, word)
    assert (error.file, error.line) == (file, None)
    assert words in error.reason


def test_an_override_may_stand_in_for_what_the_file_lacks() -> None:
    assert parse("schema = 1\nname = 'x'\n", "recipe.script=train.py").recipe.script == "train.py"


# --- there and back --------------------------------------------------------------------------------------------------


def test_a_profile_is_written_without_its_defaults() -> None:
    data = to_toml_data(parse(HEAD + RUNS + "[layout]\nnodes = 'localhost'\norder = 'block'\n"))
    assert data == {"schema": 1, "name": "x", "recipe": {"name": "gpt"}}


@given(st.sets(st.sampled_from(sorted(VALID))))
@settings(deadline=None)
def test_what_is_written_is_read_as_the_same_profile(chosen: set[tuple[str, ...]]) -> None:
    data: dict[str, Any] = {"schema": 1, "name": "x", "recipe": {"script": "train.py"}}
    names = ("nodes", "hostfile", "slurm", "pbs")
    sources = sorted(path for path in chosen if path[:1] == ("layout",) and path[1] in names)
    others = [path for path in sources[1:] if len(path) < 3 or path[:2] != sources[0][:2] or len(sources[0]) < 3]
    for path in chosen - {("recipe", "name"), ("recipe", "module"), *others}:
        data = put(data, path, VALID[path])
    profile = profile_from_data(data, "p")
    text = tomlkit.dumps(to_toml_data(profile))
    assert parse(text) == profile


# --- anything at all -------------------------------------------------------------------------------------------------


def refusal(make: Callable[[], Profile]) -> ProfileError | None:
    """What is wrong with a profile: one sentence, or None where it is accepted. Any other exception gets through."""
    try:
        assert isinstance(make(), Profile)
    except ProfileError as error:
        return error
    return None


def accepted_or_refused(make: Callable[[], Profile], *, lines: int = 0) -> None:
    if error := refusal(make):
        assert error.reason
        assert error.message.isprintable()
        assert error.line is None or 1 <= error.line <= lines


@given(st.text(max_size=200))
@example("\ud800 = 1")
@example("schema = 1\nname = 'x'\nrecipe.name = 'y'\n\x85")
@settings(deadline=None)
def test_any_text_is_accepted_or_refused(text: str) -> None:
    accepted_or_refused(lambda: parse(text), lines=text.count("\n") + 2)


@pytest.mark.slow
@given(st.text(max_size=40), st.text(max_size=40))
@settings(deadline=None)
def test_any_override_is_accepted_or_refused(key: str, value: str) -> None:
    for word in (key, f"{key}={value}", f"env.{key}={value}", f"recipe.args={value}", f"layout.order={value}"):
        accepted_or_refused(functools.partial(parse, GOOD, word), lines=GOOD.count("\n"))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.times()
)
NAMES = st.sampled_from(sorted({part for path in VALID for part in path})) | st.text(max_size=6)
TOML = st.recursive(
    SCALARS.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(NAMES, TOML, max_size=6))
@settings(deadline=None)
def test_any_tables_are_accepted_or_refused(data: dict[str, Any]) -> None:
    for given_data in (data, {"schema": 1, "name": "x", "recipe": {"name": "gpt"}} | data):
        accepted_or_refused(functools.partial(profile_from_data, given_data, "form"))


@pytest.mark.slow
@given(st.sampled_from(sorted(VALID)), TOML)
@settings(deadline=None, max_examples=300)
def test_any_value_for_a_known_key_is_accepted_or_refused_by_that_key(path: tuple[str, ...], value: Any) -> None:
    data: dict[str, Any] = {"schema": 1, "name": "x", "recipe": {"script": "train.py"}}
    if error := refusal(lambda: profile_from_data(put(data, path, value), "form")):
        assert error.key.split(".")[0] == path[0]


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_mutated_profile_is_accepted_or_refused(data: st.DataObject) -> None:
    text = GOOD
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 12)))
        text = (
            text[:begin]
            + data.draw(st.text(max_size=3) | st.sampled_from(['"', "[", "]", "=", "\n", "#", "'", "'''"]))
            + text[end:]
        )
    accepted_or_refused(lambda: parse(text), lines=text.count("\n") + 2)
