"""What `ps` shows of our processes."""

import subprocess
import sys

import pytest

from engine.node.titles import COMMAND_LENGTH
from tests.support import PATIENCE, ROOT


def shown(code: str) -> tuple[bytes, str, str]:
    """Arguments, environment and short name of a process that has run this code."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from engine.node import titles; {code}; "
        "sys.stdout.buffer.write(b'|'.join(open(f'/proc/self/{name}', 'rb').read() for name in ('cmdline', 'environ', 'comm')))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    environment = {"RANKDECK_MARK": "mark"}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=PATIENCE, check=True)
    words, variables, name = done.stdout.split(b"|")
    assert len(words) == sum(len(word.encode()) + 1 for word in argv), "the kernel shows the same memory as before"
    return words, variables.decode(), name.decode().rstrip("\n")


@pytest.mark.parametrize(
    ("about", "times", "whole"), [("train-x7k2 gpu01", 1, True), ("é", 2000, False), ("", 1, True)]
)
def test_a_title_ends_inside_the_arguments_and_leaves_the_environment_alone(about: str, times: int, whole: bool):
    words, variables, name = shown(f"titles.show_title('agent', {about!r} * {times})")
    title = words.rstrip(b"\0")
    wanted = f"rankdeck: agent {about * times}".rstrip().encode()
    assert title == wanted if whole else wanted.startswith(title)
    assert words.endswith(b"\0")
    assert variables == "RANKDECK_MARK=mark\0"
    assert name == "rankdeck-agent"


def test_a_command_is_shown_word_by_word() -> None:
    words, _, name = shown("titles.show_command(['python', 'train.py', '--lr', '1'], 'pt_main_thread')")
    assert words.rstrip(b"\0") == b"python\0train.py\0--lr\x001"
    assert name == "pt_main_thread"[:COMMAND_LENGTH]


def test_every_role_fits_into_a_short_name_that_tells_it() -> None:
    roles = "agent bridge guard standby store supervisor template user-template warden".split()
    assert len({f"rankdeck-{role}"[:COMMAND_LENGTH] for role in roles}) == len(roles)
