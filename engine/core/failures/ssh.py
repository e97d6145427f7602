"""Explains why no agent could be started on a node, from an exit status and the output. The status shows who wrote the output: 255 is
ssh, srun or pbs_tmrsh itself, or a command that was killed; 126 and 127 come from a shell; 97 to 99 from rankdeck; all others from the
command on the node. Known causes are data in `causes/ssh.toml`, `causes/slurm.toml`, `causes/pbs.toml` and `causes/nodes.toml`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from engine.core.failures.known import Speaker, find_connection_cause
from engine.core.failures.services import Ended
from engine.core.patterns import late
from engine.core.run.state import status_words
from engine.core.terminal_text import decoded, terminal_line, visible
from engine.core.words import limited

if TYPE_CHECKING:
    from engine.core.plan.profile import Transport

EXIT_SETUP_FAILED = 97  # status of a boot command if `launch.setup` failed

EXIT_CUT_OFF = 98
EXIT_REFUSED = 99  # statuses of the agent itself; `engine.node.agent` uses the same numbers
EXIT_LAUNCHER = 255  # status of ssh itself; of srun too, which is told to use it
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126

MAX_LINES = 200  # last lines of the output that are searched
MAX_LINE = 300  # longest line that is searched or shown, in characters


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node has no agent. The texts continue a line that begins with `gpu01: `."""

    fact: str  # the failure, one line
    hint: str  # the next step, one line
    retry: bool = False  # whether a second try within seconds may succeed
    final: bool = False  # whether no other try can ever succeed, because the job is over
    gone: bool = False  # whether the job goes on without this node

    @property
    def text(self) -> str:
        return f"{self.fact}; {self.hint}"


_BY_HAND = "try it by hand: {try}"

_STATUSES: dict[int | None, tuple[str, str]] = {
    None: ("it did not answer in time", "check the node, and how long {python} takes to start there"),
    0: (
        "another program ran there instead of the agent, and ended",
        "check whether a login file there ends the shell or starts another one, and whether sshd forces a command",
    ),
    EXIT_NOT_EXECUTABLE: ("{python} is not executable there", "set launch.python to one that you can run"),
    EXIT_NOT_FOUND: (
        "there is no {python} there",
        "set launch.python to the path of one, or add it to PATH in launch.setup",
    ),
    EXIT_CUT_OFF: ("the connection broke while the agent was being sent", "check the node"),
    EXIT_REFUSED: ("its agent could not start", "check TMPDIR and your processes there"),
    EXIT_LAUNCHER: ("the command there was killed, or {tool} ended, without output", "check its memory; " + _BY_HAND),
}
"""Fact and hint for a status, if the output shows no known cause."""

_TOOLS: dict[Transport, tuple[str, str]] = {
    "slurm": ("srun", "srun --jobid={job} --overlap -w {node} true"),
    "pbs": ("pbs_tmrsh", "pbs_tmrsh {node} true"),
}
"""The program that starts the command on a node, and how to try it by hand; ssh otherwise."""

_NO_SSH = late(r"can't start ssh: |No such file or directory: '(?:\S*/)?ssh'")
_NO_SRUN = late(r"env: \W?srun\W?: No such file")

_NOISE = late(
    r"[\s@~^*_=#-]*$"  # frames, and the markers that fish prints below a line
    r"|fish: ?$|exec "  # the line that fish marks
    r"|(?:stty|tput|mesg|tset|setterm|bind|biff|dircolors): |.*no job control in this shell|.*terminal process group"
    r"|.*setlocale: |.*[Ww]arning: |debug\d: |[Cc]ontrol ?[Ss]ocket |mux_client|usage: |Try `|srun: error: [^:]+: task \d+: |srun: (?:Force )?[Tt]erminat|srun: Check |.*X11 |Disconnected from "
)
"""Lines that explain nothing: complaints of login files that expect a terminal, and ssh's debug output."""

_ON_THE_WAY = late(r"^Connection (?:closed|reset) by UNKNOWN port", re.MULTILINE)
_EXIT_OF_SHELL = 128


def explain(
    node: str, *, status: int | None, said: str | bytes, python: str, setup: bool, transport: Transport = "ssh", job: str = "",
    wrapped: bool = False, ended: Ended | None = None,
) -> Trouble:  # fmt: skip
    """Explains why no agent answered on a node.

    Args:
        status: how the command that starts the agent ended: an exit code, or minus the number of the signal that ended it on this
            machine; None: no answer in time; `EXIT_REFUSED`, with the reason as `said`, if the agent started and exited.
        said: its output on stderr, and on stdout before the agent's first message. Not trusted.
        python: `launch.python` of that node.
        setup: whether `launch.setup` ran before.
        job: the Slurm job that the command is a step of; empty: none.
        wrapped: whether `launch.wrap` ended there with this status.
        ended: how agents ended again and again, unless their output shows a known cause.

    Returns:
        Printable text of bounded length, one line each.
    """
    lines = _lines(said)
    last = _last_words(lines)
    tool, by_hand = _TOOLS.get(transport, ("ssh", "ssh {node} true"))
    words = {
        "node": node,
        "python": _one_line(python),
        "job": job,
        "tool": tool,
        "try": by_hand.format(node=node, job=job),
    }
    if _NO_SSH.search(last):
        hint = "install the OpenSSH client here, or correct PATH"
        return Trouble(fact="ssh is not installed on this machine", hint=hint)
    if transport == "slurm" and _NO_SRUN.search(last):
        return Trouble(fact="there is no srun on this machine", hint="start rankdeck where Slurm's commands are")
    if status == EXIT_SETUP_FAILED and setup:
        last = last.removeprefix("setup: ")
        return Trouble(
            fact=_cut(f"launch.setup failed: {last}" if last else "launch.setup failed without output"),
            hint=f"correct it; to try it by hand: ssh {node}, then bash -l",
        )
    if wrapped and status is not None and status > 0 and status not in (EXIT_CUT_OFF, EXIT_REFUSED):
        return Trouble(
            fact=_cut(f"launch.wrap does not start {words['python']} there: {last or status_words(status)}"),
            hint="correct launch.wrap; launch.python is the Python inside it",
        )
    text = "\n".join(lines)
    scheduler: Speaker | None = transport if transport == "slurm" or transport == "pbs" else None
    speaker: Speaker = "node" if status != EXIT_LAUNCHER else scheduler or "ssh"
    found = find_connection_cause(text, scheduler, status, words) if scheduler else None
    if found := found or find_connection_cause(text, speaker, status, words):
        fact, cause = found.detail, found.cause
        if status == EXIT_LAUNCHER and _ON_THE_WAY.search(text) and not cause.proxied:
            fact = f"at a jump host: {fact}"
        return Trouble(fact=_cut(fact), hint=_cut(found.hint), retry=cause.retry, final=cause.final, gone=cause.gone)
    return Trouble(fact=ended.reason, hint=ended.advice) if ended else _by_status(status, last, words)


def _by_status(status: int | None, last: str, words: dict[str, str]) -> Trouble:
    """Explains a status if the output shows no known cause."""
    if status is not None and status < 0:
        hint = "check what kills processes on this machine"
        return Trouble(fact=f"the command that connects to it was killed by {status_words(status)}", hint=hint)
    if status is not None and _EXIT_OF_SHELL < status < EXIT_LAUNCHER and 0 < (status - _EXIT_OF_SHELL) < 65:
        hint = "check the memory of the node"
        return Trouble(fact=f"{words['python']} was killed there by {status_words(_EXIT_OF_SHELL - status)}", hint=hint)
    if status == EXIT_LAUNCHER and last:
        return Trouble(fact=_cut(f"{words['tool']} failed: {last}"), hint=_BY_HAND.format(**words))
    fact, hint = _STATUSES.get(
        status, (f"the command there ended with {status_words(status or 0)}", "check that {python} runs there")
    )
    is_said = last and status not in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE)
    fact = fact.format(**words)
    hint = _cut(hint.format(**words))
    return Trouble(fact=_cut(f"{fact}: {last}" if is_said else fact), hint=hint, retry=status == EXIT_CUT_OFF)


def _lines(said: str | bytes) -> list[str]:
    """The output as printable lines without empty ones."""
    lines = (_one_line(line) for line in decoded(said[-MAX_LINES * MAX_LINE :]).split("\n")[-MAX_LINES:])
    return [line for line in lines if line]


def _one_line(text: str) -> str:
    return _cut(visible(" ".join(terminal_line(text[: 4 * MAX_LINE], colour=False).split())))


def _cut(text: str) -> str:
    return limited(text, MAX_LINE)


def _last_words(lines: list[str]) -> str:
    """The last line that may have an explanation."""
    return next((line for line in reversed(lines) if not _NOISE.match(line)), lines[-1] if lines else "")
