"""With `--ascii`, every screen is drawn with ASCII characters alone."""

from tests.support import from_table
from tui.start import is_ascii_terminal


@from_table
def test_a_terminal_without_unicode_gets_ascii(environment: dict[str, str], is_ascii: bool):
    assert is_ascii_terminal(environment) == is_ascii
