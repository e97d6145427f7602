"""The part of a log that is on the screen: its first row, and how it moves. A line keeps its number, whatever arrives below or is loaded
above, and the window keeps the number of its first line: the text under a reader stands still."""

from rich.cells import cell_len
from textual.strip import Strip

from tui.widgets.log_rows import LogRows

Position = tuple[int, int]  # first line in view, and its rows above the window if lines are wrapped


class LogWindow:
    def __init__(self, rows: LogRows) -> None:
        self._rows = rows
        self.height = 0
        self.top = 0
        self.skip = 0
        self.column = 0  # cells that are left of the window, where lines are not wrapped

    @property
    def position(self) -> Position:
        return self.top, self.skip

    @property
    def bottom(self) -> int:
        """Index of the line below the last row; the log may end before it."""
        return self.moved(self.height)[0]

    def place(self, position: Position) -> None:
        """Goes to a position, or as near as the log allows."""
        self.top, self.skip = max((0, 0), min(position, self.end()))

    def end(self) -> Position:
        """The position whose last row is the log's last."""
        top = self._rows.count
        if not self._rows.wraps:
            return max(0, top - self.height), 0
        found = 0
        while top > 0 and found < self.height:
            top -= 1
            found += len(self._rows.of(top))
        return top, max(0, found - self.height)

    def moved(self, rows: int) -> Position:
        """The position that is `rows` further down."""
        top, skip = self.top, self.skip + rows
        if not self._rows.wraps:
            return top + skip, 0
        while skip < 0 < top:
            top -= 1
            skip += len(self._rows.of(top))
        while skip > 0 and top < self._rows.count and skip >= (height := len(self._rows.of(top))):
            top, skip = top + 1, skip - height
        return top, max(0, skip)

    def show_line(self, index: int) -> None:
        """Moves to a line if it is not in view, and sideways to the match in it."""
        if not self.top <= index < self.bottom:
            self.top, self.skip = index, 0
            self.top, self.skip = max((0, 0), self.moved(-(self.height // 2)))
        if not self._rows.wraps:
            width = self._rows.width
            prefix, text, _ = self._rows.text(index)
            begin, end = self._rows.first_match(text)
            right = cell_len(prefix.text + text[:end])
            if not self.column <= cell_len(prefix.text + text[:begin]) < right <= self.column + width:
                self.column = max(0, right - width * 3 // 4) if right > width else 0

    def screenful(self) -> list[Strip]:
        """The rows in view; fewer where the log ends."""
        found: list[Strip] = []
        index, skip = self.position
        while index < self._rows.count and len(found) < self.height:
            found += self._rows.of(index)[skip:]
            index, skip = index + 1, 0
        width, base = self._rows.width, self._rows.styles.base
        return [row.crop_extend(self.column, self.column + width, base) for row in found[: self.height]]
