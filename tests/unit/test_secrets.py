"""What looks like a secret is hidden wherever rankdeck shows variables, arguments, shell lines and settings."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.plan.secrets import HIDDEN, hidden, shown_environment, shown_shell, shown_value, shown_words
from tests.support import from_table

RANDOM = "a1B2" * 9
HEXADECIMAL = "0123456789abcdef" * 2


@from_table
def test_values_of_variables_with_secret_names_are_never_shown(name: str):
    assert shown_environment({name: "hunter2", "RANK": "0"}) == {name: HIDDEN, "RANK": "0"}


@pytest.mark.parametrize(
    "value",
    [
        f"ghp_{RANDOM}", "github_pat_" + "11AAAAAAA0" * 3, "hf_" + "abcDEF" * 5, "sk-proj-" + "abc123" * 6, "AKIAIOSFODNN7EXAMPLE",
        "glpat-abcdefghij0123456789", "xoxb-123456789012-abcdef", "SG.abcdefgh.ijklmnop", "sk_live_abcdefgh12345678", HEXADECIMAL, RANDOM,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "https://me:hunter2@proxy:3128", "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
        f"https://{HEXADECIMAL}@o1.ingest.sentry.io/4", "https://hooks.slack.com/services/T00/B00/xyz",
    ],
)  # fmt: skip
def test_values_that_look_like_tokens_are_never_shown(value: str):
    assert shown_environment({"X": value}) == {"X": HIDDEN}
    assert value not in shown_words(["train.py", value, f"--x={value}"])
    assert HIDDEN in hidden(f"x {value}")


@from_table
def test_ordinary_variables_are_shown(name: str, value: str):
    assert shown_environment({name: value}) == {name: value}


@from_table
def test_secrets_on_a_command_line_are_hidden(line: str, shown: str):
    assert shown_words(shlex.split(line)) == shlex.split(shown)


@from_table
def test_ordinary_arguments_are_shown(line: str):
    assert shown_words(shlex.split(line)) == shlex.split(line)


def test_secrets_in_shell_lines_are_hidden():
    lines = (
        f"module load cuda; export HF_TOKEN='a b' X=1\ncurl -u me https://me:pw@host && login --password=p ghp_{RANDOM}"
    )
    assert shown_shell(lines) == (
        f"module load cuda; export HF_TOKEN={HIDDEN} X=1\ncurl -u me https://me:{HIDDEN}@host && login --password={HIDDEN} {HIDDEN}"
    )


def test_settings_are_shown_in_one_line_without_secrets():
    assert shown_value("env.TOKEN", "x") == shown_value("--api-key", "x") == HIDDEN
    assert shown_value("launch.warm", False) == "false"
    assert shown_value("recipe.args", ["--token", "x", "--lr", "1"]) == f"--token {HIDDEN} --lr 1"


def test_showing_an_environment_keeps_its_names_and_leaves_it_alone():
    env = {"A": "1", "A_KEY": "2"}
    assert list(shown_environment(env)) == ["A", "A_KEY"]
    assert env == {"A": "1", "A_KEY": "2"}


@given(st.lists(st.text(alphabet=" \n'\"=:;&|{}-abK1", max_size=12), max_size=6))
def test_any_words_are_shown_as_as_many_words(words: list[str]):
    assert len(shown_words(words)) == len(words)
    shown_shell(" ".join(words))


@from_table
def test_long_hostile_texts_are_read_in_one_pass(text: str):
    hidden(text * 20_000)  # quadratic time would pass the time limit of tests
