"""Messages between a supervisor and the agent of a node: JSON objects in frames, distinguished by `type`.

supervisor  Hello, then any other `Request`; a question is answered by the `Answer` that has its number
agent       Hello or Refused, then whatever happens on the node (`Report`)

The agent uses only the standard library, so it has dictionaries instead of these types; `tests/unit/test_wire.py` compares the two. An
agent runs as long as its run, so it may be of an earlier version: fields that it does not send have a default, and it ignores fields
that it does not know.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

LARGEST = (1 << 53) - 1  # the largest whole number that every reader of JSON keeps exactly

Number = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Size = Annotated[int, Meta(ge=0, le=LARGEST)]  # bytes, or the number of a rank


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One frame."""
