"""A line of text in which a pasted launch command is not text but a command."""

from textual import events
from textual.message import Message
from textual.widgets import Input

from engine.core.launch_commands.command import looks_like_launch


class CommandLine(Input):
    """An `Input`. Textual's own input keeps only the first pasted line, so that a batch file would be lost."""

    class Pasted(Message):
        """A command, or a batch file, that starts ranks."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def on_paste(self, event: events.Paste) -> None:
        if looks_like_launch(event.text):
            event.prevent_default()
            event.stop()
            self.post_message(self.Pasted(event.text))
