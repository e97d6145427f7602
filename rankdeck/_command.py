"""The `rankdeck` command as pip installs it: finds the engine and the app, which are not importable by the user's programs."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Runs the command line. Returns the exit status."""
    package = Path(__file__).resolve().parent
    installed = package / "_app"
    sys.path.insert(0, str(installed if installed.is_dir() else package.parent))
    import rankdeck_command

    return rankdeck_command.main()
