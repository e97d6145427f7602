"""Describes every recipe in `docs/recipes.md`, from what the scripts declare.

`python docs/recipes.py` writes the page; `python docs/recipes.py --check` only tells whether it is current, by its exit status.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "recipes.md"

BEGIN = "<!-- recipes: made by docs/recipes.py -->\n"
END = "<!-- end of recipes -->\n"

from engine.core.arguments.argument import Argument, RecipeInfo, Value  # noqa: E402
from engine.planning.profiles import read_profile  # noqa: E402
from engine.planning.recipes import recipes, script_of  # noqa: E402


def described() -> str:
    """The part of the page that is made from the scripts."""
    found = recipes().values()
    rows = [f"| [`{one.name}`](#{one.name}) | {one.summary} |" for one in found]
    return "\n".join(["| recipe | what it shows |", "|---|---|", *rows, "", *(section(one) for one in found)])


def section(recipe: RecipeInfo) -> str:
    """One recipe: what it teaches, where it runs, what it takes."""
    lines = [f"## {recipe.name}", "", recipe.summary, "", recipe.lesson, ""]
    path = f"../{script_of(recipe.name).relative_to(ROOT)}"
    shipped = sorted(
        file.stem for file in (ROOT / "profiles").glob("*.toml") if read_profile(file).recipe.name == recipe.name
    )
    launch = f"launch {shipped[0]}" if shipped else f"run -n 4 {recipe.name}"
    lines += [f"Try it with `rankdeck {launch}`; read [the script]({path}).", ""]
    if limits := _limits(recipe):
        lines += [limits, ""]
    lines += ["| argument | takes | default | meaning |", "|---|---|---|---|"]
    lines += [_row(argument) for argument in recipe.accepted]
    return "\n".join([*lines, ""])


def _limits(recipe: RecipeInfo) -> str:
    fewest, most = recipe.ranks
    ranks = [f"{fewest} or more" if fewest else "", f"{most} or fewer" if most else ""]
    said = [f"Ranks: {', '.join(filter(None, ranks))}."] if any(ranks) else []
    said += [f"torch {recipe.torch} or newer."] if recipe.torch else []
    said += [f"Not on {backend}: {why}." for backend, why in recipe.refused.items()]
    return " ".join(said)


def _row(argument: Argument) -> str:
    default = [f"`{_word(argument.default)}`"] if argument.default != "" else []
    default += [f"{preset}: `{_word(value)}`" for preset, value in argument.presets.items()]
    takes = argument.takes + (f", in {argument.unit}" if argument.unit else "")
    flag = f"--{argument.name}`, `--no-{argument.name}" if argument.type == "bool" else f"--{argument.name}"
    cells = (f"`{flag}`", takes, ", ".join(default), argument.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _word(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def main() -> int:
    """Writes the page, or checks it. Returns the exit status."""
    page = DOCUMENT.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    wanted = f"{head}{BEGIN}{described()}{END}{rest.split(END)[1]}"
    if "--check" in sys.argv:
        return int(wanted != page)
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
