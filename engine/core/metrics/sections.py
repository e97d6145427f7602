"""Headings in output: whether the lines after one are about training, held-out data, or the whole run.

` > EVALUATION`, ` - Test metrics:` or `"validation": {` begin a section of held-out data, `***** train metrics *****` a summary. A section ends
with the next heading, the next count of the training, or the bracket that closes its object.
"""

from __future__ import annotations

import re
from typing import Literal

from engine.core.metrics.patterns import P

Section = Literal["training", "held out", "held out table", "summary"]
"""Where a line is. A row of a table counts epochs or steps without ending the section that the table is in."""

LONGEST = 200
"""Bytes of the longest heading."""

CLOSED = frozenset((b"}", b"},"))
"""Lines that close an object."""


def section_of(line: str) -> Section | None:
    """The section that a line begins; None: it is no heading."""
    line = line.strip()
    found = P.heading.search(line)
    if found is None or not (
        found["end"].strip() or found["what"] or found[0] == line or found[0][:1] in ">*=#-" or line.isupper()
    ):
        return None
    if found["best"] or (found["train"] and re.search(r"metrics|summary|results", found["what"], re.IGNORECASE)):
        return "summary"
    return "training" if found["train"] else "held out"
