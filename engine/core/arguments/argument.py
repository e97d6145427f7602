"""One argument of a command line, as a script or a recipe declares it."""

import math
import re
import shlex
from collections.abc import Callable
from typing import Literal

import msgspec

Value = int | float | str | bool  # the value of an argument

YES, NO = "yes", "no"
BOOL = {False: NO, True: YES}  # values of a bool in a form
PRESET = "preset"  # the argument that chooses a preset

_LIKE_OPTION = re.compile(r"-(?!\d+\Z|\d*\.\d+\Z|\Z)")
"""Begins what argparse takes for an option; it knows numbers such as `-0.5`, not `-1e-5`."""

_READERS: dict[str, Callable[[str], Value]] = {"int": int, "float": float, "str": str}


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One command line argument, as a script declares it: `--name value`, or `--name` and `--no-name` for a bool.

    `presets`: values by the name of a preset. `word`: as the command line has it, if that is not `--name`; one that ends in `=` is one word
    with its value. `off`: what means no; None: `--no-name`; empty: nothing does. `many`: how several values are written, `--name 1 2`,
    `--name 1 --name 2` or `name=[1,2]`; empty: it takes one. `count`: how many values; 0: any number. Of several values, the default is a
    text, with blanks between them. `alone`: the value if the command line has `--name` and no value; empty: a value is needed. `aliases`:
    other flags that mean the same. `is_positional`: it has no flag,
    and its place says which it is. `is_optional`: a positional one may be left out. `is_required`: the script refuses to run
    without a value. The other fields are those of
    `rankdeck.recipes.parameter`.
    """

    name: str
    type: Literal["int", "float", "str", "bool"]
    default: Value
    help: str
    low: int | float | None = None
    high: int | float | None = None
    unit: str = ""
    choices: tuple[Value, ...] = ()
    pattern: str = ""
    presets: dict[str, Value] = {}
    word: str = ""
    off: str | None = None
    many: Literal["", "words", "again", "list"] = ""
    count: int = 0
    alone: str = ""
    aliases: tuple[str, ...] = ()
    is_positional: bool = False
    is_optional: bool = False
    is_required: bool = False

    @property
    def flag(self) -> str:
        """Its option on the command line; empty: it is positional."""
        return "" if self.is_positional else self.word or f"--{self.name}"

    @property
    def flags(self) -> dict[str, bool]:
        """The words of a bool, and their values; empty for other types."""
        if self.type != "bool":
            return {}
        off = f"--no-{self.name}" if self.off is None else self.off
        return {self.flag: True, off: False} if off else {self.flag: True}

    @property
    def takes(self) -> str:
        """The values that it takes, in words: `a whole number from 1 to 8`. The script uses the same words."""
        if self.many:
            return f"{self.count or 'one or more'} values, each {self._takes_one}"
        return f"{self._takes_one}; {self.flag} alone: {self.alone}" if self.alone else self._takes_one

    @property
    def _takes_one(self) -> str:
        if self.choices:
            return f"one of {', '.join(str(choice) for choice in self.choices)}"
        noun = {"int": "a whole number", "float": "a number", "bool": "yes or no"}.get(self.type, "a text")
        least, most = (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in (self.low, self.high))
        if self.low is not None and self.high is not None:
            return f"{noun} from {least} to {most}"
        if self.low is not None:
            return f"{noun} of {least} or more"
        return f"{noun} of {most} or less" if self.high is not None else noun

    @property
    def described(self) -> str:
        """Its help, its values, its default and its presets, in words."""
        facts = [self.takes, self.unit]
        if self.default != "":
            facts.append(f"default {_value_word(self.default)}")
        facts += [f"{preset} {_value_word(value)}" for preset, value in self.presets.items()]
        return f"{self.help} ({'; '.join(filter(None, facts))})"

    def problem(self, text: str) -> str:
        """Why a text is not a valid value, in the words of the script; empty: it is valid."""
        if self.alone and text == self.alone:
            return ""
        if not self.many:
            return self._problem_of_one(text)
        try:
            words = shlex.split(text)
        except ValueError as error:
            return f"can't be read as words: {str(error).lower()}"
        if self.count and len(words) != self.count:
            return f"{text!r} is not {self.takes}"
        return next(filter(None, map(self._problem_of_one, words)), "")

    def words(self, value: str) -> list[str]:
        """The words of the command line that give it a value. If it takes several values, the text has blanks between them."""
        if not self.many:
            return self._with_value(value)
        values = shlex.split(value)
        if self.is_positional:
            return values
        match self.many:
            case "list":
                return [f"{self.flag}[{','.join(values)}]"]
            case "again":
                return [word for one in values for word in self._with_value(one)]
            case _:
                return [self.flag, *values]

    def _with_value(self, value: str) -> list[str]:
        if self.is_positional:
            return [value]
        if self.alone and value == self.alone:
            return [self.flag]
        if self.flag.endswith("="):
            return [self.flag + value]
        is_one_word = self.flag.startswith("--") and _LIKE_OPTION.match(value) is not None
        return [f"{self.flag}={value}"] if is_one_word else [self.flag, value]

    def _problem_of_one(self, word: str) -> str:
        if self.is_positional and _LIKE_OPTION.match(word):
            return f"{word!r} would be read as an option"
        try:
            value: Value | None = _READERS[self.type](word)
        except ValueError:
            value = None
        if value is not None and self._allows(value):
            return ""
        return f"{word!r} is not understood: {self.help}" if self.pattern else f"{word!r} is not {self._takes_one}"

    def _allows(self, value: Value) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, str):
            return not self.pattern or re.fullmatch(self.pattern, value) is not None
        least = -math.inf if self.low is None else self.low
        most = math.inf if self.high is None else self.high
        return least <= value <= most and abs(value) != math.inf


def _value_word(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


class RecipeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in training script. `summary`: one line. `lesson`: its explanation. `refused`: why it can't run, by backend. `ranks`: the
    fewest and the most; None: no limit. `torch`: the oldest torch with which it works; empty: any that ranks may have."""

    name: str
    summary: str
    lesson: str = ""
    arguments: tuple[Argument, ...]
    refused: dict[str, str] = {}
    ranks: tuple[int | None, int | None] = (None, None)
    torch: str = ""

    @property
    def presets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(preset for argument in self.arguments for preset in argument.presets))

    @property
    def accepted(self) -> tuple[Argument, ...]:
        """All arguments of its command line: `--preset` first, if it has presets."""
        if not self.presets:
            return self.arguments
        preset = Argument(name=PRESET, type="str", default="", help="values that go together", choices=self.presets)
        return (preset, *self.arguments)
