"""Which file of a traceback is opened, and with which command."""

from pathlib import Path

from engine.client.editor import Frame, editor_command, frame_to_edit
from tests.support import from_table

HERE = Path(__file__)


def frames(*places: tuple[str, int]) -> str:
    """A traceback with these frames."""
    lines = [f'  File "{file}", line {line}, in main\n    call()' for file, line in places]
    return "\n".join(["Traceback (most recent call last):", *lines, "ValueError: no"])


def test_the_last_frame_of_the_users_own_file_is_opened(tmp_path: Path):
    library = tmp_path / "lib/site-packages/torch/nn.py"
    library.parent.mkdir(parents=True)
    library.touch()
    assert frame_to_edit(frames((str(HERE), 3), (str(HERE), 7), (str(library), 9))) == Frame(str(HERE), 7)
    assert frame_to_edit(frames((str(library), 9))) == Frame(str(library), 9)
    assert frame_to_edit(frames(("/nonexistent/a.py", 1), ("/nonexistent/b.py", 2))) == Frame("/nonexistent/b.py", 2)


@from_table
def test_what_is_no_file_is_not_opened(text: str):
    assert frame_to_edit(text) is None


@from_table
def test_editors_get_the_line_in_their_own_way(editor: str, words: list[str], tmp_path: Path):
    program = tmp_path / editor.split()[0]
    program.touch(0o755)
    frame = Frame(str(HERE), 7)
    wanted = [word.format(file=HERE) for word in words]
    for name in ("EDITOR", "VISUAL"):
        assert editor_command(frame, {name: editor, "PATH": str(tmp_path)}) == wanted


def test_without_an_editor_there_is_no_command(tmp_path: Path):
    frame = Frame(str(HERE), 7)
    assert editor_command(frame, {"PATH": str(tmp_path)}) is None
    assert editor_command(frame, {"PATH": str(tmp_path), "EDITOR": "'unclosed"}) is None
    (tmp_path / "nano").touch(0o755)
    assert editor_command(frame, {"PATH": str(tmp_path)}) == ["nano", "+7", str(HERE)]
