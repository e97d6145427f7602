"""The origin of a run: code, versions and environment, recorded so that two runs can be compared later."""

import msgspec

from engine.core.patterns import late
from engine.core.plan.secrets import shown_environment

MAX_DIFF = 1 << 20  # bytes of a stored patch
MAX_FILES = 500  # most names of changed or new files

SESSION = late(
    r"^(?:SSH_|XDG_SESSION_|XDG_RUNTIME_DIR$|TMUX|STY$|WINDOW|DBUS_|DISPLAY$|WAYLAND_|TERM|COLORTERM$|LS_COLORS$|LESS|SHLVL$|_$"
    r"|PWD$|OLDPWD$|COLUMNS$|LINES$|KONSOLE_|VTE_|ITERM_|GNOME_|VSCODE_|LOGNAME$|MAIL$|PS1$|HIST|EDITOR$|VISUAL$|PAGER$|BASH_FUNC_"
    r"|TEXTUAL|RANKDECK_MARK$|INVOCATION_ID$|JOURNAL_STREAM$|SLURM_JOB_?ID$|SLURM_STEP)"
)
"""Variables that differ from one login to the next and change no training."""

MAX_VALUE = 2000  # characters of a variable's value that are kept


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The git repository of the working directory when ranks started there. `changed`: files that differ from the commit; `untracked`:
    files that git does not know. `is_cut`: more is changed than was stored."""

    root: str
    commit: str = ""
    branch: str = ""
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    is_cut: bool = False
    trouble: str = ""  # why the rest is unknown

    @property
    def words(self) -> str:
        """`1a2b3c4d5e main, 2 files changed`."""
        if not self.commit:
            return f"unknown: {self.trouble}"
        count = len(self.changed)
        changed = f", {count} file{'s' if count != 1 else ''} changed" if count else ""
        return f"{self.commit[:10]} {self.branch}".rstrip() + changed


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """`origin.json`. `versions`: of rankdeck, Python, torch and other packages found. `environment`: the supervisor's, which ranks on
    this machine inherit; secrets are hidden. `script`: beginning of the SHA-256 of the script; empty: no script, or it can't be read
    here."""

    at: float
    host: str
    code: Code | None = None
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    script: str = ""


def kept_environment(environment: dict[str, str]) -> dict[str, str]:
    """The variables that are worth keeping: without those of the login session, secrets hidden, long values cut."""
    kept = {name: value[:MAX_VALUE] for name, value in sorted(environment.items()) if not SESSION.match(name)}
    return {
        name.encode(errors="replace").decode(): value.encode(errors="replace").decode()
        for name, value in shown_environment(kept).items()
    }
