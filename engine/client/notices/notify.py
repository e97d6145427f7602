"""Tells the user that a run needs them: bell, desktop notification of the terminal, a command of theirs, a webhook."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from engine.core.settings import Desktop, Notify, Occasion
from engine.core.terminal_text import terminal_line

LONGEST = 200  # characters of a notification
COMMAND_SECONDS = 10.0  # seconds that the user's command, or their webhook, may take


class Telling(NamedTuple):
    """A message for a user. `text` is raw: it may quote a rank's output."""

    occasion: Occasion
    run: str
    name: str
    text: str


def terminal_sequences(notify: Notify, told: Telling, environment: Mapping[str, str] = os.environ) -> str:
    """Characters that make a terminal ring and show a notification; empty: neither. None of the control characters come from a run. `notify`: what
    the user wants. `environment`: says which terminal this is."""
    bell = "\a" if notify.bell else ""
    kind = notify.desktop if notify.desktop != "auto" else desktop_of(environment)
    sequence = _sequence(kind, _plain(f"rankdeck {told.run}"), _plain(told.text))
    if sequence and environment.get("TMUX"):  # passed on with `allow-passthrough on`; else tmux drops it
        sequence = f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\"
    return bell + sequence


def desktop_of(environment: Mapping[str, str]) -> Desktop:
    """The sequence that a terminal takes, by the variables that it sets. `off`: unknown, since another may print it as text."""
    program, term = environment.get("TERM_PROGRAM", ""), environment.get("TERM", "")
    if environment.get("KITTY_WINDOW_ID") or term == "xterm-kitty":
        return "osc99"
    if program == "iTerm.app" or environment.get("LC_TERMINAL") == "iTerm2" or environment.get("ConEmuPID"):
        return "osc9"
    is_777 = program in ("WezTerm", "ghostty") or term in ("xterm-ghostty", "wezterm") or environment.get("VTE_VERSION")
    return "osc777" if is_777 or term.startswith(("foot", "rxvt-unicode")) else "off"


def _sequence(kind: Desktop, title: str, text: str) -> str:
    match kind:
        case "osc9":
            return f"\x1b]9;{title}: {text}\x1b\\"
        case "osc777":
            return f"\x1b]777;notify;{title};{text}\x1b\\"
        case "osc99":
            return f"\x1b]99;i=rankdeck:d=0;{title}\x1b\\\x1b]99;i=rankdeck:p=body;{text}\x1b\\"
        case _:
            return ""


def _plain(text: str) -> str:
    """Printable characters on one line; a semicolon would begin another field."""
    line = terminal_line(text, colour=False)
    return "".join(one for one in line if one.isprintable()).replace(";", ",")[:LONGEST]


async def send(notify: Notify, told: Telling) -> list[str]:
    """Runs the user's command and posts to their webhook, at once, and waits for both. Returns why they did not do their work, in words;
    empty: they did."""
    problems = await asyncio.gather(run_command(notify.command, told), post(notify.webhook, told))
    return [problem for problem in problems if problem]


async def run_command(command: Sequence[str], told: Telling) -> str:
    """Runs the user's command, without a shell, and waits until it has ended. The run's words are in its environment only: arguments are
    seen by every user of the machine. Returns why it did not do its work, in words; empty: it did."""
    if not command:
        return ""
    words = {
        "RANKDECK_EVENT": told.occasion,
        "RANKDECK_RUN": _plain(told.run),
        "RANKDECK_PROFILE": _plain(told.name),
        "RANKDECK_TEXT": _plain(told.text),
    }
    ended = await _run("notify.command", command, environment=words)
    if isinstance(ended, str):
        return ended
    return f"notify.command ended with status {ended.status}" if ended.status else ""


async def post(url: str, told: Telling) -> str:
    """Posts a message to the user's webhook, as JSON, and waits for the answer. `url`: may be a secret: it is in no argument and in no
    answer. Empty: nothing is posted. Returns why it was not taken, in words; empty: it was."""
    if not url:
        return ""
    run, profile, reason = (_plain(one).translate(_NO_MENTIONS) for one in (told.run, told.name, told.text))
    text = f"{run}: {reason}"
    body = {"event": told.occasion, "run": run, "profile": profile, "reason": reason, "text": text}
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("webhook.py"))]
    ended = await _run("notify.webhook", program, msgspec.json.encode({"url": url, "body": body}))
    if isinstance(ended, str):
        return ended
    problem = _plain(ended.said.decode(errors="replace"))
    if ended.status:
        return "notify.webhook: it was not posted"
    return f"notify.webhook: {problem}" if problem else ""


_NO_MENTIONS = str.maketrans("<>@", "\u2039\u203a\uff20")
"""Programs for chat read `<!channel>`, `<http://...|words>` and `@all` as orders; what a rank prints must not be able to give any."""


class _Ended(NamedTuple):
    """How a program ended, and its stdout."""

    status: int
    said: bytes


async def _run(
    what: str, command: Sequence[str], given: bytes = b"", environment: Mapping[str, str] = MappingProxyType({})
) -> _Ended | str:
    """Runs a program without a shell, and ends it with its children after `COMMAND_SECONDS`. `given`: bytes for its stdin. With them, the
    output is read; without them, it is dropped, because children may keep the pipe open. `environment`: in addition to that of this
    process. Returns how it ended; in words, where it could not be run or had to be ended."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{what} can't be run: {error}"
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            said = (await process.communicate(given))[0] if given else b""
            return _Ended(await process.wait(), said)
    except TimeoutError:
        return f"{what} was ended: it took over {COMMAND_SECONDS:.0f} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
