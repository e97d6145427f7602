"""A process on its way: a template forks it, or it is started cold."""

from __future__ import annotations

from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    StartJob = Callable[["Job", Message, dict[str, str], dict[str, str]], None]
    """Takes a job, the message that asks for it, the environment of all that it asks for, and what this one has besides."""


class Job:
    """A process that a template is asked to fork.

    Args:
        request: what `template.py` takes.
        files: opens those whose descriptors go along; they are closed once the request is sent.
        started: called with pid and start time.
        refused: called where no template can fork it, so that it is started cold.
        dropped: called where it is not wanted any more.
    """

    def __init__(
        self,
        request: Message,
        files: Callable[[], Iterable[Any]],
        started: Callable[[int, int], None],
        refused: Callable[[], None],
        dropped: Callable[[], None],
    ) -> None:
        self.request, self.files = request, files
        self.started, self.refused, self.dropped = started, refused, dropped
