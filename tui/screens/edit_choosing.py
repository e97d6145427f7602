"""Lists from which lines of a form are filled: scripts of the working directory, partitions of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from textual import work

from engine.core.errors import RankdeckError
from engine.core.plan.batch.slurm import partition_words, soonest_first
from tui.data.form_lines import JOB_NODES, OWN_SCRIPT, PARTITION, RECIPE, SCRIPT
from tui.data.off_loop import off_loop
from tui.data.path_lines import scripts_below
from tui.screens.edit_saving import SavingScreen
from tui.text.cells import plain_line


class ChoosingScreen(SavingScreen):
    """A form with lines that can be filled from lists."""

    def value_of(self, line: str) -> str:
        """What is in a line, by its id; empty: nothing, or there is no such line."""
        raise NotImplementedError

    def take(self, values: Mapping[str, str], cursor: str) -> object:
        """Fills lines, by their ids.

        Args:
            values: for the lines, which need not be there yet.
            cursor: the line that gets the cursor.
        """
        raise NotImplementedError

    def script_folder(self) -> Path:
        """Where the path of a script begins."""
        return Path(self.value_of("launch.workdir").strip() or ".").expanduser()

    @work(group="script", exclusive=True, exit_on_error=False)
    async def action_choose_script(self) -> None:
        """Asks for one of the scripts in the working directory, and makes it what ranks run."""
        folder = self.script_folder()
        found = await off_loop(scripts_below, folder)
        if not found:
            self.say(f"there is no Python file in {plain_line(str(folder.absolute()))}", error=True)
        elif self.is_current:
            self.deck.choose_from(
                dict.fromkeys(found, ""),
                lambda path: self.take({RECIPE: OWN_SCRIPT, SCRIPT: path}, SCRIPT),
                "a script",
            )

    @work(group="partition", exclusive=True, exit_on_error=False)
    async def action_choose_partition(self) -> None:
        """Shows what is free in Slurm's partitions, and asks for one."""
        self.say("asking Slurm what is free")
        try:
            found = await off_loop(self.engine.partitions)
        except RankdeckError as error:
            self.deck.show_error("Slurm does not tell what is free", error)
            return
        if self.is_current:
            options = {one.name: partition_words(one) for one in soonest_first(found)}
            self.deck.choose_from(options, self._take_partition, "a partition")

    def _take_partition(self, name: str) -> None:
        self.take({JOB_NODES: self.value_of(JOB_NODES) or "1", PARTITION: name}, PARTITION)
