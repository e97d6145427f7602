"""Explains why no agent could be started on a node, from what little there is: an exit status and some lines of text.

The status says who speaks: 255 is ssh itself, or a command that was killed; 126 and 127 are a shell; 97 and up are ours; all
others are what ran on the node. What is known is data, as in `diagnosis`: a regex, what it means, what helps.
"""

from __future__ import annotations

import re

import msgspec

from engine.core.run.state import status_words
from engine.core.terminal_text import decoded, terminal_line, visible

EXIT_SETUP_FAILED = 97
"""Status of a boot command whose setup lines, `launch.setup`, failed."""

EXIT_CUT_OFF = 98
EXIT_REFUSED = 99
"""The agent's own, `engine.node.agent`."""

EXIT_SSH = 255
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126

MAX_LINES = 200
MAX_LINE = 300
"""How much of what was said is looked at: the last lines, each up to so many characters."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node has no agent, in words that go on from `gpu01: `."""

    fact: str
    """What happened, one line."""
    advice: str
    """The next step, one line."""
    retry: bool = False
    """Whether trying again within seconds may work by itself."""

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.fact}; {self.advice}"


class _Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A known failure. `fact` and `advice` may use `{node}`, `{python}` and the named groups of `pattern`."""

    pattern: re.Pattern[str]
    fact: str
    advice: str
    statuses: tuple[int, ...]
    retry: bool


def _cause(pattern: str, *, fact: str, advice: str, statuses: tuple[int, ...] = (), retry: bool = False) -> _Cause:
    return _Cause(pattern=re.compile(pattern, re.MULTILINE), fact=fact, advice=advice, statuses=statuses, retry=retry)


_BY_HAND = "try it by hand: ssh {node} true"

_ACCOUNT: tuple[_Cause, ...] = (
    _cause(
        r"^(?:Your account has expired|Account .*expired)",
        fact="your account there has expired",
        advice="ask its administrator",
    ),
    _cause(
        r"[Pp]assword has expired|^You are required to change your password|^Password change required",
        fact="your password there has expired",
        advice="change it by hand: ssh {node}",
    ),
    _cause(
        r"^This account is (?:currently )?not available",
        fact="your account there has no login shell",
        advice="choose a node that you may log in to",
    ),
    _cause(
        r"pam_slurm|no active jobs on this node",
        fact="Slurm lets nobody in who has no job there",
        advice="take nodes of a running job of yours: squeue --me",
    ),
    _cause(
        r"^(?P<said>.*(?:[Ss]ystem is (?:going down|booting up|shutting down)|Unprivileged users are not permitted).*)",
        fact="it lets nobody in now: {said}",
        advice="try again later, or choose another node",
    ),
)
"""Said by PAM, or by a login shell that is none, with whatever status."""

_SSH: tuple[_Cause, ...] = (
    # --- ssh on this machine
    _cause(
        r"^command-line:? line \d+: (?P<said>.+)",
        fact="ssh refuses an option: {said}",
        advice="correct layout.ssh_options",
    ),
    _cause(
        r"^(?P<said>(?:unknown|illegal|invalid) option -- .+|option requires an argument -- .+|Bad (?:port|number|escape).+)",
        fact="ssh refuses an option: {said}",
        advice="correct layout.ssh_options",
    ),
    _cause(
        r"^(?P<file>[^:]+?):? line (?P<line>\d+): (?P<said>.+)\n\S+: terminating, \d+ bad configuration options",
        fact="ssh can't use {file}, line {line}: {said}",
        advice="correct that line",
    ),
    _cause(
        r"^Bad owner or permissions on (?P<file>[^'\n]+)",
        fact="ssh refuses {file}, which is another's, or which others may write",
        advice="chmod 600 '{file}', and see whose it is",
    ),
    _cause(
        r"^Can't open user config file (?P<file>.+): (?P<why>[^:\n]+)",
        fact="ssh can't read {file}: {why}",
        advice="correct layout.ssh_options",
    ),
    _cause(
        r"^Cannot execute command-line and remote command",
        fact="ssh's configuration has a RemoteCommand for it, which leaves no room for another",
        advice='set layout.ssh_options = ["-o", "RemoteCommand=none"]',
    ),
    # --- who it is
    _cause(
        r"^Offending (?:\S+ )?key (?:for IP )?in (?P<file>[^'\n]+):(?P<line>\d+)$(?s:.*)^Host key for (?P<host>[\w.:\[\]-]+) has changed",
        fact="its host key is not the one in {file}, line {line}: it was reinstalled, or it is another machine",
        advice="if it was reinstalled: ssh-keygen -f '{file}' -R '{host}', then ssh {node} true",
    ),
    _cause(
        r"^Host key verification failed",
        fact="its host key is not known here, or not trusted",
        advice="connect once by hand, compare the fingerprint, answer yes: ssh {node} true",
    ),
    _cause(
        r"^Unable to negotiate with (?P<where>.+?): no matching (?P<what>[^.\n]+?) found\. Their offer: (?P<offer>.+)",
        fact="ssh here and there have no {what} in common; it offers {offer}",
        advice="allow one of these for it in ~/.ssh/config, or bring its sshd up to date",
    ),
    # --- who you are
    _cause(
        r"^Permissions \d+ for '(?P<key>[^'\n]+)' are too open(?s:.*)^\S+@\S+: Permission denied \(",
        fact="ssh does not use {key}, which others may read, and it lets you in with nothing else",
        advice="chmod 600 '{key}'",
    ),
    _cause(
        r"agent refused operation(?s:.*)^\S+@\S+: Permission denied \(",
        fact="the ssh agent here does not sign with your key",
        advice="unlock it (ssh-add), then " + _BY_HAND,
    ),
    _cause(
        r'^Load key "(?P<key>[^"\n]+)": (?P<why>.+)$(?s:.*)^\S+@\S+: Permission denied \(',
        fact="ssh can't use {key}: {why}; it lets you in with nothing else",
        advice="correct IdentityFile in ~/.ssh/config, then " + _BY_HAND,
    ),
    _cause(
        r"^(?P<who>\S+@\S+): Permission denied \((?P<ways>[^)\n]*publickey[^)\n]*)\)",
        fact="it does not let {who} in ({ways})",
        advice=_BY_HAND + ", which must ask nothing: ssh-add your key, or ssh-copy-id {node}",
    ),
    _cause(
        r"^(?P<who>\S+@\S+): Permission denied \((?P<ways>[^)\n]*gssapi[^)\n]*)\)",
        fact="it does not let {who} in ({ways})",
        advice="get a Kerberos ticket (kinit), then " + _BY_HAND,
    ),
    _cause(
        r"^(?P<who>\S+@\S+): Permission denied \((?P<ways>[^)\n]*)\)",
        fact="it does not let {who} in without a question ({ways})",
        advice="open a shared connection by hand (ControlMaster in ~/.ssh/config), or ask for login by key",
    ),
    _cause(
        r"Too many authentication failures",
        fact="ssh offered it more keys than it allows",
        advice="name one in ~/.ssh/config: IdentityFile, with IdentitiesOnly yes",
    ),
    # --- the way there
    _cause(
        r"^ssh: Could not resolve hostname (?P<host>.+?): Temporary failure",
        fact="no name server answered when asked for {host}",
        advice="see whether the network of this machine is up",
        retry=True,
    ),
    _cause(
        r"^ssh: Could not resolve hostname (?P<host>.+?): (?P<why>.+)",
        fact="{host} is no host that this machine knows: {why}",
        advice="correct layout.nodes, or add HostName for it to ~/.ssh/config",
    ),
    _cause(
        r"^ssh: connect to host (?P<host>\S+) port (?P<port>\d+): Connection refused",
        fact="nothing listens for ssh on {host}, port {port}",
        advice="see whether it has started up, and whether Port in ~/.ssh/config is right",
    ),
    _cause(
        r"^ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?:Connection|Operation) timed out",
        fact="{host} does not answer on port {port}: it is down, or a firewall keeps ssh out",
        advice="see whether it is up; " + _BY_HAND,
    ),
    _cause(
        r"^ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?P<why>No route to host|Network is unreachable)",
        fact="there is no way to {host}: {why}",
        advice="see whether it is up and in a network that this machine reaches, else set ProxyJump in ~/.ssh/config",
    ),
    _cause(
        r"^ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?P<why>.+)",
        fact="no connection to {host}, port {port}: {why}",
        advice=_BY_HAND,
    ),
    _cause(
        r"^Connection timed out during banner exchange|^Connection to .+ port \d+ timed out",
        fact="something takes the connection, but says nothing: its sshd hangs or has too much to do",
        advice="see whether it is well; if it is only slow, set ConnectTimeout in layout.ssh_options",
    ),
    _cause(
        r"^channel \d+: open failed: (?P<why>.+)\n(?:.*\n)?stdio forwarding failed",
        fact="its jump host can't reach it: {why}",
        advice="see whether it is up, from the jump host",
    ),
    _cause(
        r"^channel \d+: open failed: |session request failed: Session open refused",
        fact="its sshd opens no session on this connection (MaxSessions)",
        advice='end sessions that share the connection, or set layout.ssh_options = ["-o", "ControlPath=none"]',
    ),
    _cause(
        r"^(?:exec|shell|subsystem) request failed on channel",
        fact="its sshd could not start a process for you",
        advice="see whether you have too many processes there, or it has no memory left",
    ),
    _cause(
        r"^Connection (?:closed|reset) by (?!UNKNOWN)|^ssh_exchange_identification: |^ssh_dispatch_run_fatal: ",
        fact="its sshd closed the connection at once, as one does that is asked by many (MaxStartups)",
        advice="if it stays so, see whether sshd is well there and lets this machine in",
        retry=True,
    ),
    _cause(
        r"^(?P<said>(?!kex_).+)\n(?:kex_exchange_identification: .*\n)?Connection (?:closed|reset) by UNKNOWN port",
        fact="the ProxyJump or ProxyCommand to it failed: {said}",
        advice=_BY_HAND,
    ),
    _cause(
        r"^Connection (?:closed|reset) by UNKNOWN port",
        fact="the ProxyJump or ProxyCommand to it ended without a connection",
        advice=_BY_HAND,
    ),
    _cause(
        r"^Connection to .+ closed by remote host|^client_loop: |^Timeout, server .+ not responding|^Read from remote host",
        fact="the connection broke before its agent had started",
        advice="see whether it is well",
        retry=True,
    ),
)
"""Said by ssh, of this machine or of one on the way. What is more special stands first."""

_NODE: tuple[_Cause, ...] = (
    # --- its disks, memory, processes
    _cause(
        r"No space left on device(?P<path>: '[^'\n]+')?",
        fact="a disk there is full{path}",
        advice="make room where the agent keeps its files: the temporary folder and the run's folder",
    ),
    _cause(
        r"[Qq]uota exceeded(?P<path>: '[^'\n]+')?",
        fact="your disk quota there is used up{path}",
        advice="make room, or see `quota -s` there",
    ),
    _cause(
        r"Read-only file system(?P<path>: '[^'\n]+')?",
        fact="a file system there can't be written{path}",
        advice="set TMPDIR there to a folder that can be, and launch.workdir likewise",
    ),
    _cause(
        r"No usable temporary directory found",
        fact="no temporary folder there can be written",
        advice="set TMPDIR there to a folder that can be",
    ),
    _cause(
        r"Errno 13\] Permission denied(?P<path>: '[^'\n]+')?",
        fact="the agent may not write there{path}",
        advice="make that folder yours, or writable",
    ),
    _cause(
        r"fork: (?:retry: )?Resource temporarily unavailable|[Cc]annot fork|fork failed|BlockingIOError|can't start new thread",
        fact="no more processes of yours can be started there",
        advice="end what is left of earlier runs, or raise `ulimit -u` there",
    ),
    _cause(
        r"MemoryError|[Cc]annot allocate memory|failed to map segment|[Oo]ut of memory",
        fact="it has no memory left for one more process",
        advice="end what fills it, or raise `ulimit -v` there",
    ),
    _cause(
        r"cannot open shared object file: Error 24|[Tt]oo many open files",
        fact="no more files can be opened there",
        advice="raise `ulimit -n` there",
    ),
    # --- the Python that is to run the agent
    _cause(
        r"error while loading shared libraries: (?P<library>[^:\n]+):",
        fact="{python} does not start there: it lacks {library}",
        advice="put what it needs into launch.setup, as in `module load`",
    ),
    _cause(
        r"version .(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)' not found",
        fact="{python} was built for a newer system than runs there: it lacks {version}",
        advice="set launch.python to one of that node's",
    ),
    _cause(
        r"init_fs_encoding|No module named '?encodings",
        fact="{python} does not find its own library there",
        advice="take PYTHONHOME out of the login files and launch.setup, or correct launch.python",
    ),
    _cause(
        r"^Unknown option: -I$|^SyntaxError: |^ImportError: cannot import name|^AttributeError: module ",
        fact="{python} is too old there: the agent needs 3.8",
        advice="set launch.python to a newer one",
    ),
    _cause(
        r"^(?:ModuleNotFound|Import)Error: No module named '?(?P<name>[\w.]+)",
        fact="{python} lacks its own module {name} there",
        advice="set launch.python to a whole Python",
    ),
    _cause(
        r"[Ee]xec format error|cannot execute binary file|could not be run by the operating system",
        fact="{python} there is no program for that machine",
        advice="set launch.python to one that was built for it",
    ),
    _cause(
        r"exec: (?:line \d+: )?bash: not found",
        fact="it has no bash, which runs launch.setup",
        advice="install bash there, or do without launch.setup",
    ),
    _cause(
        r"^Could not chdir to home directory (?P<home>[^:\n]+): (?P<why>.+)",
        fact="your home there, {home}, can't be entered: {why}",
        advice="see whether it is mounted: ssh {node} df -h",
        statuses=(1, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND),
    ),
    _cause(  # tcsh ends with 1 whatever it was
        r": Command not found\.$",
        fact="there is no {python} there",
        advice="set launch.python to the path of one, or put it on PATH in launch.setup",
        statuses=(1,),
    ),
    _cause(
        r": Permission denied\.$",
        fact="{python} may not be run there",
        advice="set launch.python to one that you may run",
        statuses=(1,),
    ),
)
"""Said by what ran on the node: its login shell, Python, the agent."""

_STATUSES: dict[int | None, tuple[str, str]] = {
    None: ("it did not answer in time", "see whether the node is well, and how long {python} takes to start there"),
    0: (
        "something else than the agent ran there, and ended",
        "see whether a login file there ends the shell or starts another, or sshd forces a command",
    ),
    EXIT_NOT_EXECUTABLE: ("{python} may not be run there", "set launch.python to one that you may run"),
    EXIT_NOT_FOUND: (
        "there is no {python} there",
        "set launch.python to the path of one, or put it on PATH in launch.setup",
    ),
    EXIT_CUT_OFF: ("the connection broke while its agent was sent there", "see whether the node is well"),
    EXIT_REFUSED: ("its agent gave up", "see whether the node is well"),
    EXIT_SSH: (
        "the command there was killed, or ssh ended, without a word",
        "see whether it is out of memory; " + _BY_HAND,
    ),
}
"""What a status alone means."""

_NO_SSH = re.compile(r"can't start ssh: |No such file or directory: '(?:\S*/)?ssh'")

_NOISE = re.compile(
    r"[\s@~^*_=#-]*$"  # frames, and where fish points at
    r"|fish: ?$|exec "  # what fish points into
    r"|(?:stty|tput|mesg|tset|setterm|bind|biff|dircolors): |.*no job control in this shell|.*terminal process group"
    r"|.*setlocale: |.*[Ww]arning: |debug\d: |[Cc]ontrol ?[Ss]ocket |mux_client|usage: |Try `|.*X11 |Disconnected from "
)
"""Lines that explain nothing: login files that want a terminal, ssh's chatter."""

_ON_THE_WAY = re.compile(r"^Connection (?:closed|reset) by UNKNOWN port", re.MULTILINE)
_EXIT_OF_SHELL = 128


def explain(node: str, *, status: int | None, said: str | bytes, python: str, setup: bool) -> Trouble:
    """Says why no agent answered on a node.

    Args:
        node: its name.
        status: of the command that should have started it: an exit code, or minus the number of the signal that ended it on
            this machine; None: it said nothing in time; `EXIT_REFUSED`, with the reason as `said`, where the agent did start.
        said: what it wrote to stderr, and to stdout in place of the agent's first word. Nothing in there is trusted.
        python: `launch.python` of that node.
        setup: whether `launch.setup` ran before.

    Returns:
        Printable text on one line each, of bounded length.
    """
    lines = _lines(said)
    last = _last_words(lines)
    words = {"node": node, "python": _one_line(python)}
    if _NO_SSH.search(last):
        return Trouble(fact="this machine has no ssh", advice="install OpenSSH's client here, or correct PATH")
    if status == EXIT_SETUP_FAILED and setup:
        last = last.removeprefix("setup: ")
        return Trouble(
            fact=_cut(f"launch.setup failed: {last}" if last else "launch.setup failed without a word"),
            advice=f"correct it; to try it by hand: ssh {node}, then bash -l",
        )
    text = "\n".join(lines)
    for cause in (*_ACCOUNT, *(_SSH if status == EXIT_SSH else _NODE)):
        if (not cause.statuses or status in cause.statuses) and (found := cause.pattern.search(text)):
            words |= {name: group or "" for name, group in found.groupdict().items()}
            fact = cause.fact.format(**words)
            if status == EXIT_SSH and _ON_THE_WAY.search(text) and "Proxy" not in fact and "jump" not in fact:
                fact = f"on the way there, at a jump host: {fact}"
            return Trouble(fact=_cut(fact), advice=_cut(cause.advice.format(**words)), retry=cause.retry)
    return _by_status(status, last, words)


def _by_status(status: int | None, last: str, words: dict[str, str]) -> Trouble:
    """Where nothing that was said is known."""
    if status is not None and status < 0:
        return Trouble(
            fact=f"the command that reaches it was killed by {status_words(status)}",
            advice="see who or what ends processes on this machine",
        )
    if status is not None and _EXIT_OF_SHELL < status < EXIT_SSH and _is_signal(status - _EXIT_OF_SHELL):
        return Trouble(
            fact=f"{words['python']} was killed there by {status_words(_EXIT_OF_SHELL - status)}",
            advice="see whether the node is out of memory",
        )
    if status == EXIT_SSH and last:
        return Trouble(fact=_cut(f"ssh failed: {last}"), advice=_BY_HAND.format(**words))
    fact, advice = _STATUSES.get(
        status, (f"what ran there ended with {status_words(status or 0)}", "see whether {python} runs there")
    )
    is_said = last and status not in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE)
    fact = fact.format(**words)
    return Trouble(
        fact=_cut(f"{fact}: {last}" if is_said else fact),
        advice=_cut(advice.format(**words)),
        retry=status == EXIT_CUT_OFF,
    )


def _is_signal(number: int) -> bool:
    return 0 < number < 65


def _lines(said: str | bytes) -> list[str]:
    """What was said, as printable lines that are not empty."""
    lines = (_one_line(line) for line in decoded(said[-MAX_LINES * MAX_LINE :]).split("\n")[-MAX_LINES:])
    return [line for line in lines if line]


def _one_line(text: str) -> str:
    return _cut(visible(" ".join(terminal_line(text[: 4 * MAX_LINE], colour=False).split())))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def _last_words(lines: list[str]) -> str:
    """The last line that may explain something."""
    return next((line for line in reversed(lines) if not _NOISE.match(line)), lines[-1] if lines else "")
