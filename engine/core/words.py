"""Lists of ranks, modules and counts in sentences, and suggestions for words that are unknown."""

from collections.abc import Iterable, Sequence


def suggestion(word: str, known: Iterable[str], otherwise: str, likeness: float = 0.6) -> str:
    """`did you mean nodes?`: the most similar of the known words; `otherwise` where none is similar. `likeness`: at least, up to 1."""
    import difflib  # only errors need it

    near = difflib.get_close_matches(word, list(known), 1, likeness)
    return f"did you mean {near[0]}?" if near else otherwise


def rank_words(ranks: Sequence[int], most: int = 4) -> str:
    """`rank 2`, `ranks 1, 2`, `ranks 0, 1, 2, 3 and 12 more`. `ranks`: at least one. `most`: ranks that are named; the others are
    counted."""
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:most]))}{more}"


def rank_ranges(ranks: Sequence[int]) -> str:
    """All ranks, with runs of them folded: `rank 3`, `ranks 0-2, 5`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    words = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def import_words(modules: Sequence[tuple[str, float]]) -> str:
    """`torch in 1.9 s, transformers.trainer in 4.7 s`: modules and the seconds that their imports took."""
    return ", ".join(f"{name} in {seconds:.1f} s" for name, seconds in modules)


def preload_words(modules: Sequence[str]) -> str:
    """The setting that lets ranks share the imports of modules, in words."""
    names = ", ".join(f'"{name}"' for name in modules)
    return f"launch.preload = [{names}] imports {'it' if len(modules) == 1 else 'them'} once, before ranks start"


def limited(text: str, most: int) -> str:
    """The text, or its beginning with an ellipsis: at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
