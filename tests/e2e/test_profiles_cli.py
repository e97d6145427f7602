"""Profiles on the command line: where they are found, what is wrong with them, `--set`, `--help` and completion."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

import engine.commands.cli
from tests.support import COMMAND, PATIENCE, entries, from_table, run_program, verbs

GOOD = 'schema = 1\nname = "good"\n[recipe]\nname = "linear"\n'
HEAD = 'schema = 1\nname = "bad"\n'
RUN = '[recipe]\nname = "linear"\n'

MALFORMED = {
    "empty": "",
    "not TOML": "schema = ",
    "deep arrays": "x = " + "[" * 3000,
    "an unknown key with controls": HEAD + RUN + '[layout]\n"\\u001b[2J" = 4\n',
    "a recipe that is not there": HEAD + '[recipe]\nname = "linaer"\n',
}
"""A few, for how an error is printed; `tests/data/malformed_profiles.tsv` has a hundred."""

VERBS = ["profiles", "backends", "plan", "check", "env", "launch", "ps", "status", "diagnose", "logs", "metrics", "attach", "restart", "kill", "stacks", "stop", "wait", "bench", "clean", "completion", "recipes", "run", "new", "compare", "runs", "note", "gc", "export", "import", "takeover", "config", "nodes", "prometheus", "serve", "sweep", "queue"]  # fmt: skip


class ProgramOutput:
    """What the command said, run inside this process."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def inside(home, monkeypatch, capsys):
    """The command line inside this process: a hundred of them in a second."""

    def run(*words: str | Path) -> ProgramOutput:
        monkeypatch.setattr(sys, "argv", ["rankdeck", *map(str, words)])
        status = engine.commands.cli.main()
        said = capsys.readouterr()
        return ProgramOutput(status, said.out, said.err)

    return run


# --- what is wrong with a profile


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("verb", ["plan", "launch"])
def test_a_malformed_profile_is_one_clear_error(inside, work, home, name, verb):
    (work / "bad.toml").write_text(MALFORMED[name], encoding="utf-8", newline="")
    said = inside(verb, "./bad.toml")
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("rankdeck: ")
    assert "bad.toml" in said.err
    assert len(said.err.splitlines()) <= 2
    assert "\x1b" not in said.err
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"schema = 1\nname = '\xff'\n", b"\xef\xbb\xbfschema = ]", b"\x00" * 100]
)
def test_a_file_that_is_no_text_is_a_profile_error(inside, work, data):
    (work / "bad.toml").write_bytes(data)
    said = inside("plan", "./bad.toml")
    assert said.status == 2
    assert "bad.toml" in said.err


def test_a_folder_a_device_and_a_huge_file_are_no_profiles(inside, work):
    (work / "folder.toml").mkdir()
    assert inside("plan", "./folder.toml").status == 2
    with (work / "huge.toml").open("wb") as file:
        file.truncate(1 << 33)
    said = inside("plan", "./huge.toml")
    assert said.status == 2
    assert "too large" in said.err


def test_a_fifo_that_is_called_a_profile_does_not_hang_the_command(rankdeck, work):
    os.mkfifo(work / "pipe.toml")
    assert rankdeck("plan", "./pipe.toml", seconds=20).returncode == 2
    (work / ".rankdeck").mkdir()
    os.mkfifo(work / ".rankdeck" / "pipe.toml")
    assert rankdeck("profiles", seconds=20).returncode == 0


@from_table
def test_a_wrong_set_word_is_named(word, wanted, inside, work):
    (work / "good.toml").write_text(GOOD)
    said = inside("plan", "./good.toml", "--set", word)
    assert said.status == 2
    assert "--set" in said.err
    assert wanted in said.err


# --- where profiles are found


def test_profiles_are_found_nearest_first(inside, work, home):
    for folder, description in ((work / ".rankdeck", "here"), (home / "profiles", "yours")):
        folder.mkdir(parents=True)
        (folder / "quickstart.toml").write_text(GOOD.replace('"good"', f'"quickstart"\ndescription = "{description}"'))
    (home / "profiles" / "mine.toml").write_text(GOOD)
    shown = {entry["name"]: entry for entry in json.loads(inside("profiles", "--json").out)}
    assert (shown["quickstart"]["source"], shown["quickstart"]["description"]) == ("here", "here")
    assert shown["mine"]["source"] == "yours"
    (work / ".rankdeck" / "quickstart.toml").unlink()
    shown = {entry["name"]: entry for entry in json.loads(inside("profiles", "--json").out)}
    assert shown["quickstart"]["source"] == "yours"
    (home / "profiles" / "quickstart.toml").unlink()
    shown = {entry["name"]: entry for entry in json.loads(inside("profiles", "--json").out)}
    assert shown["quickstart"]["source"] == "shipped"


def test_a_broken_profile_is_listed_with_its_error_and_hides_no_other(inside, work):
    (work / ".rankdeck").mkdir()
    (work / ".rankdeck" / "broken.toml").write_text("schema = 7")
    (work / ".rankdeck" / "good.toml").write_text(GOOD)
    said = inside("profiles")
    assert said.status == 0
    assert "schema" in said.out
    assert "good" in said.out
    shown = {entry["name"]: entry for entry in json.loads(inside("profiles", "--json").out)}
    assert shown["broken"]["error"]
    assert shown["good"]["error"] is None


def test_a_name_that_does_not_exist_has_the_nearest_one(inside):
    said = inside("plan", "quikstart")
    assert said.status == 2
    assert "did you mean quickstart?" in said.err


def test_the_app_does_not_open_on_another_profile_than_the_one_that_is_asked_for(inside, work):
    said = inside("--profile", "quikstart")
    assert (said.status, "did you mean quickstart?" in said.err) == (2, True)
    (work / "mine.toml").write_text(GOOD)
    said = inside("--profile", "mine.toml")
    assert (said.status, "lists profiles by name" in said.err) == (2, True)


@pytest.mark.parametrize("word", ["", "no/such/file", "x.toml", "/", "..", "\x1b[2J", "a" * 5000, "quickstart.toml"])
def test_a_profile_that_is_not_there_is_a_usage_error(inside, word):
    said = inside("plan", "--", word)
    assert said.status == 2
    assert "\x1b" not in said.err


def test_every_shipped_profile_can_be_planned_or_says_what_is_missing(inside):
    shipped = [entry["name"] for entry in json.loads(inside("profiles", "--json").out) if entry["source"] == "shipped"]
    assert "quickstart" in shipped
    missing = {
        "nccl": ("NVIDIA GPU", "can't ask whether nccl can run"),  # some nodes are only an example
        "ucc": ("libucc",),
    }
    for name in shipped:
        said = inside("plan", name, "--json")
        words = missing.get(name.partition("-")[0], ())
        if words and said.status == 3:
            assert any(word in said.err for word in words)
            continue
        assert said.status == 0, said.err
        assert json.loads(said.out)["places"]


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ('launch.workdir = "~nobody-of-that-name/a"', 3, "~nobody-of-that-name/a does not exist"),
        ('launch.python = "~nobody-of-that-name/python"', 3, "there is no Python"),
        (f"launch.max_restarts = {'9' * 5000}", 2, "p.toml: contains a number with thousands of digits"),
    ],
)
def test_odd_values_are_a_user_s_mistake_and_no_traceback(inside, work, line, status, reason):
    (work / "p.toml").write_text(HEAD + f'recipe.name = "linear"\n{line}\n')
    said = inside("plan", "p.toml")
    assert (said.status, reason in said.err) == (status, True)


def test_plan_names_nodes_ranks_and_the_exact_command(inside, work):
    (work / "my script.py").write_text("")
    (work / "p.toml").write_text(
        HEAD + '[layout]\nranks_per_node = 3\n[recipe]\nscript = "my script.py"\nargs = ["a b"]\n'
    )
    said = inside("plan", "./p.toml")
    assert said.status == 0
    assert f"'{work}/my script.py' 'a b'" in said.out
    assert "0 1 2" in said.out


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_plan_shows_setup_lines_without_their_secrets(inside, work, words):
    (work / "p.toml").write_text(
        HEAD
        + RUN
        + "[launch]\nsetup = 'module load cuda; export HF_TOKEN=swordfish'\npython = '"
        + sys.executable
        + "'\n"
    )
    said = inside("plan", "./p.toml", *words)
    assert said.status == 0, said.err
    assert "module load cuda; export HF_TOKEN=•••" in said.out
    assert "swordfish" not in said.out


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_plan_hides_what_looks_like_a_secret_in_the_words_of_a_rank(inside, work, words):
    (work / "train.py").write_text("")
    (work / "p.toml").write_text(
        HEAD
        + '[recipe]\nscript = "train.py"\nargs = ["--token", "swordfish", "--api-key=mackerel", "--steps", "7"]\n'
        + '[rank]\nwrap = ["env", "--password=turbot"]\n'
    )
    said = inside("plan", "./p.toml", *words)
    assert said.status == 0, said.err
    assert all(word in said.out for word in ("--token", "--api-key=•••", "--password=•••", "--steps"))
    assert not any(secret in said.out for secret in ("swordfish", "mackerel", "turbot"))


# --- help and completion


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_says_something(inside, verb):
    said = inside(verb, "--help")
    assert said.status == 0
    assert "Usage: rankdeck " + verb in said.out
    assert len(said.out.splitlines()) > 5
    assert inside(verb, "-h").out == said.out


def test_the_help_of_the_whole_names_every_verb_and_how_to_begin(inside):
    said = inside("--help")
    assert said.status == 0
    assert all(f"\n  {verb} " in said.out for verb in VERBS)
    assert "rankdeck launch quickstart" in said.out


def test_there_is_no_verb_that_these_tests_do_not_know():
    assert verbs() == sorted(VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(inside, shell):
    said = inside("completion", shell)
    assert said.status == 0
    assert "_RANKDECK_COMPLETE" in said.out


def test_the_completion_script_is_valid_bash(inside):
    script = inside("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=PATIENCE, check=False).returncode == 0


@from_table
def test_completion_knows_verbs_profiles_and_runs(words, wanted, rankdeck):
    folder = rankdeck.home / "runs" / "mine-abcd"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    env = {"_RANKDECK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    said = rankdeck(env=env)
    assert {line.partition(",")[2] for line in said.stdout.splitlines()} == {wanted}


@pytest.mark.parametrize("name", ["a b", "$(touch pwned)", "`touch pwned`", "it's", "*", "a;touch pwned"])
def test_bash_inserts_the_name_of_a_file_as_one_word_that_runs_nothing(rankdeck, work, inside, name):
    (work / ".rankdeck").mkdir()
    (work / ".rankdeck" / f"{name}.toml").write_text(GOOD)
    (work / ".rankdeck" / "two\nplain,lines.toml").write_text(GOOD)
    words = f"rankdeck launch {shlex.quote(name[:1])}"
    env = {"_RANKDECK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    said = rankdeck(env=env).stdout.splitlines()
    (offered,) = [line.removeprefix("plain,") for line in said]
    typed = run_program(["bash", "-c", f"printf '<%s>' {offered}"], cwd=work, check=True)
    assert typed.stdout == f"<{name}>"
    assert not (work / "pwned").exists()


SHELLS = entries("e2e/profiles_cli", "shells")
"""Of each shell, its options, and a line that prepares it: `rankdeck` prints its arguments, and its completion asks the program."""


@pytest.mark.parametrize("name", ["a b", "$(touch pwned)", "it's"])
@pytest.mark.parametrize("shell", SHELLS)
def test_other_shells_insert_the_name_of_a_file_as_one_word_that_runs_nothing(
    rankdeck, work, tmp_path, monkeypatch, shell, name
):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    (work / ".rankdeck").mkdir()
    (work / ".rankdeck" / f"zz{name}.toml").write_text(GOOD)
    command, completion = tmp_path / "bin/rankdeck", tmp_path / "completion"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, COMMAND))} "$@"\n')
    command.chmod(0o755)
    completion.write_text(rankdeck("completion", shell).stdout)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "xterm")
    options, prepare = SHELLS[shell]
    typing = pexpect.spawn(program, options, encoding="utf-8", timeout=PATIENCE, dimensions=(24, 300))
    try:
        typing.sendline(prepare.format(completion=completion))
        typing.expect("READY> ")
        typing.send("rankdeck launch zz\t\r")
        typing.expect("<launch>(.*)END")
        assert typing.match.group(1) == f"<zz{name}>"
    finally:
        typing.close(force=True)
    assert not (work / "pwned").exists()


def test_tables_stay_aligned_with_characters_that_take_two_cells(inside, work):
    (work / ".rankdeck").mkdir()
    for name in ("训练", "plain"):
        (work / ".rankdeck" / f"{name}.toml").write_text(GOOD)
    lines = inside("profiles").out.splitlines()
    (wide,) = [line for line in lines if line.startswith("训练")]
    assert wide.index("gloo") + 2 == lines[0].index("BACKEND")  # each of the two characters takes two cells


def test_help_is_fast(home):
    """Python itself, click and msgspec: nothing heavier may be loaded for a line of help."""
    import resource

    def seconds(argv: list[str]) -> float:
        """Of the processor: others may use it too."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    bare = min(seconds([sys.executable, "-c", "import click, msgspec, asyncio, tomli"]) for _ in range(3))
    assert min(seconds([*COMMAND, "--help"]) for _ in range(3)) < 3 * bare + 0.3
