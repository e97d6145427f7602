"""A real terminal for tests: a session of tmux."""

import os
import re
import subprocess
import uuid

from tests.support import PATIENCE, wait_until


class Terminal:
    """A tmux session with one window. `columns`: its width. `lines`: its height. `command`: what runs in it."""

    def __init__(self, columns: int, lines: int, command: str) -> None:
        self._name = f"rankdeck-test-{uuid.uuid4().hex[:8]}"
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-f", os.devnull, "new-session", "-d", *size, command)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # with another, the app may draw with ASCII
        )
        return done.stdout

    def screen(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p")

    @property
    def attach(self) -> tuple[str, ...]:
        """The command with which somebody looks at it in another terminal."""
        return "tmux", "-L", self._name, "attach"

    def detach(self) -> None:
        """Detaches whoever is attached."""
        self._tmux("detach-client", "-a")
        self._tmux("detach-client")

    def hide_status(self) -> None:
        """Gives the window all lines of whoever is attached."""
        self._tmux("set-option", "-g", "status", "off")

    def press(self, *keys: str, sees: str = "") -> None:
        """Types keys, by tmux's names. `sees`: what `wait_for` then waits for; empty: nothing."""
        self._tmux("send-keys", *keys)
        if sees:
            self.wait_for(sees)

    def wait_for(self, pattern: str, seconds: float = 40) -> re.Match[str]:
        """Waits until the screen shows something. `pattern`: a regular expression. `seconds`: the deadline."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(re.finditer(pattern, self.screen()))
            return bool(found)

        try:
            wait_until(look, seconds, pattern)
        except AssertionError:
            raise AssertionError(f"the screen never showed {pattern!r}:\n{self.screen()}") from None
        return found[-1]

    def close(self) -> None:
        """Closes the window, as somebody would who turns the machine off that shows it."""
        self._tmux("kill-server")
