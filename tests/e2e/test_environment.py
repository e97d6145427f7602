"""`rankdeck env`, and what `plan`, `launch` and `check` say of variables that do nothing."""

import json
from pathlib import Path

import pytest

from engine.backends import BACKENDS
from engine.backends.variables import families_of
from tests.conftest import WriteProfile
from tests.support import Deck, check_err, from_table

SAID = "NCCL_TIMEOUT does nothing: NCCL has no such variable; set backend.timeout = 600 (seconds)"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_variable_of_a_backend_is_listed_in_80_columns(rankdeck: Deck, backend: str):
    done = rankdeck("env", backend, env={"COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    for family in families_of(backend):
        assert f"{family.title}\n" in done.stdout
        for one in family.variables:
            assert f" {'*' if one.sets else ' '} {one.name}  [{one.default}]\n" in done.stdout
        assert all(f"{gone.name}: " in done.stdout for gone in family.gone)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_word_finds_names_and_descriptions_whatever_its_capitals(rankdeck: Deck):
    done = rankdeck("env", "gloo", "IfName")
    assert "GLOO_SOCKET_IFNAME" in done.stdout
    assert "* rankdeck sets it: lo on one node" in done.stdout
    assert "TORCH_HOME" not in done.stdout
    assert "TORCH_FR_BUFFER_SIZE" in rankdeck("env", "gloo", "flight recorder").stdout


def test_scripts_get_the_same_as_json(rankdeck: Deck):
    found = json.loads(rankdeck("env", "nccl", "timeout", "--json").stdout)
    assert "NCCL_TIMEOUT" in {one["name"] for one in found["gone"]}
    heartbeat = next(one for one in found["variables"] if one["name"] == "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    assert (heartbeat["takes"], heartbeat["set_by_rankdeck"]) == ("a whole number", "")


@from_table
def test_what_is_not_there_is_an_error(words: tuple[str, ...], said: str, rankdeck: Deck):
    done = rankdeck("env", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def line_of(profile: Path, text: str) -> int:
    """The line that begins so, counted from 1."""
    return next(number for number, line in enumerate(profile.read_text().splitlines(), 1) if line.startswith(text))


def test_a_plan_warns_on_standard_error_with_file_and_line(rankdeck: Deck, write_profile: WriteProfile):
    profile = write_profile({"name": "linear"}, backend={"name": "gloo", "env": {"NCCL_TIMEOUT": "5"}})
    done = rankdeck("plan", profile)
    place = f"{profile}:{line_of(profile, 'NCCL_TIMEOUT')}"
    assert (done.returncode, done.stderr) == (0, f"rankdeck: warning: {place}: backend.env.{SAID}\n")
    assert "warning" not in done.stdout
    planned = json.loads(rankdeck("plan", profile, "--json").stdout)
    assert [(one["place"], one["name"]) for one in planned["warnings"]] == [(place, "NCCL_TIMEOUT")]


def test_an_override_and_the_users_own_environment_are_told_as_such(rankdeck: Deck, write_profile: WriteProfile):
    profile = write_profile({"name": "linear"})
    done = rankdeck("plan", profile, "--set", "env.NCCL_TIMEOUT=5", env={"GLOO_SOCKET_IFNAM": "lo"})
    first, second = done.stderr.splitlines()
    assert first == f"rankdeck: warning: --set: env.{SAID}"
    assert second.startswith("rankdeck: warning: your environment: GLOO_SOCKET_IFNAM does nothing: ")
    assert second.endswith("did you mean GLOO_SOCKET_IFNAME?")


def test_a_value_can_not_make_the_terminal_do_anything(rankdeck: Deck, write_profile: WriteProfile):
    profile = write_profile({"name": "linear"}, env={"GLOO_LOG_LEVEL": "\x1b[2J\x1b]0;x\x07"})
    done = rankdeck("plan", profile)
    assert "GLOO_LOG_LEVEL is" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_launch_warns_and_goes_on(rankdeck: Deck, write_profile: WriteProfile):
    done = rankdeck(
        "launch", write_profile("import os\nprint(os.environ['NCCL_TIMEOUT'])\n", env={"NCCL_TIMEOUT": "5"})
    )
    check_err(done, 0, f"env.{SAID}")
    assert "5" in done.stdout


def test_a_check_has_a_warning_of_its_own_and_does_not_fail(rankdeck: Deck, write_profile: WriteProfile):
    profile = write_profile({"name": "linear"}, env={"NCCL_TIMEOUT": "5", "GLOO_TIMEOUT": "5"})
    done = rankdeck("check", profile, "--quick", "--json")
    assert done.returncode == 0
    (found,) = [one for one in json.loads(done.stdout) if one["check"] == "env"]
    assert found["state"] == "warn"
    assert f"{profile}:{line_of(profile, 'NCCL_TIMEOUT')}: env.NCCL_TIMEOUT does nothing" in found["text"]
    assert found["hint"].startswith("NCCL_TIMEOUT: set backend.timeout = 600 (seconds); GLOO_TIMEOUT: ")
