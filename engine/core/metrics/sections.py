"""Headings in output: whether the lines after one are about training, held-out data, or the whole run.

` > EVALUATION`, ` - Test metrics:` or `"validation": {` begin a section of held-out data, `***** train metrics *****` a summary. A section ends
with the next heading, the next count of the training, or the bracket that closes its object.
"""

from __future__ import annotations

import re
from typing import Literal

Section = Literal["training", "held out", "held out table", "summary"]
"""Where a line is. A row of a table counts epochs or steps without ending the section that the table is in."""

WORDS = frozenset(
    b"val valid validation validating eval evaluation evaluating test testing dev train training iteration".split()
)
"""Every heading has one of them."""

LONGEST = 200
"""Bytes of the longest heading."""

_HEADING = re.compile(
    r"(?:\A|[\]>|*=#:.,-])[\s>|*=#-]*[\"']?(?:(?:running|begin(?:ning)?|start(?:ing)?|final)[ ]+(?:the[ ]+)?)?"
    r"(?:(?P<held>val(?:id(?:ation|ating)?)?|eval(?:uat(?:ion|ing))?|test(?:ing)?|dev)|(?P<train>train(?:ing)?)|(?P<best>best iteration))\b[\"']?"
    r"(?P<what>(?:[ _](?:sets?|net|metrics?|performance|results?|perplexity|errors?|data(?:set)?|stats|statistics|phase|report|scores?|summary"
    r"|begins?|starts?|on|is|at|the|after|for|of|epoch|step|(?:\(#)?\d+\)?(?:/\d+)?))*)(?:,[ ]epoch[ ]\d+(?:/\d+)?)?[ ]*(?:\([^()]{0,40}\)[ ]*)?(?P<end>[:*=#{. -]*)\Z",
    re.IGNORECASE,
)
_NO_SECTION = re.compile(r"(?<![\s*=#:>|-])[:*=#-]\Z")
CLOSED = frozenset((b"}", b"},"))
"""Lines that close an object."""


def section_of(line: str) -> Section | None:
    """The section that a line begins; None: it is no heading.

    Args:
        line: at most `LONGEST` characters.
    """
    line = line.strip()
    found = _HEADING.search(line)
    if found is None or not (
        found["end"].strip() or found["what"] or found[0] == line or found[0][:1] in ">*=#-" or line.isupper()
    ):
        return None
    if found["best"] or (found["train"] and re.search(r"metrics|summary|results", found["what"], re.IGNORECASE)):
        return "summary"
    return "training" if found["train"] else "held out"
