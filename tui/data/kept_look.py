"""Writes the user's changes of the look into the settings, soon after the last one."""

import asyncio

from engine.client.protocols import EngineClient
from tui.data.off_loop import off_loop

LOOK_SECONDS = 1.0  # seconds after which a changed look is written: a key may be pressed again


class KeptLook:
    """Changes of the look that are not written yet."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._unkept: dict[tuple[str, ...], object] = {}

    def note(self, fields: dict[str, object]) -> None:
        """Takes changed fields of `Look`."""
        self._unkept |= {("look", field): value for field, value in fields.items()}

    async def keep(self, *, at_once: bool = False) -> None:
        """Writes the changes. Raises RankdeckError: they can't be written. They are not tried again."""
        if not at_once:
            await asyncio.sleep(LOOK_SECONDS)
        if values := dict(self._unkept):
            try:
                await off_loop(self._engine.keep_settings, values)
            finally:
                self._unkept = {key: value for key, value in self._unkept.items() if (key, value) not in values.items()}
