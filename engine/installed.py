"""Where rankdeck itself lies: in a checkout, or in the folder `rankdeck/_app` of an installed wheel."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""Has `engine/`, `tui/`, `profiles/` and the command; goes first on `sys.path` of our own processes only."""

APP = "_app"  # name of the folder in the installed package; ranks do not get it
COMMAND = ROOT / "rankdeck_command.py"  # run with a Python, it is the `rankdeck` command
PROFILES = ROOT / "profiles"  # the shipped profiles

LIBRARY = ROOT.parent if ROOT.name == APP else ROOT / "rankdeck"
"""The package that ranks import. The engine sends it to nodes and never imports it."""
