"""Copied text: tmux's buffer, and what a terminal takes."""

from pathlib import Path

from tui.data.clipboard import MOST, fits_terminal, to_tmux


def fake_tmux(folder: Path, refuses: str = "nothing") -> dict[str, str]:
    """The environment of a terminal inside a tmux that notes what it was asked, and refuses an option."""
    program = folder / "tmux"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = "{refuses}" ] && exit 1\necho "$@" > {folder}/asked\n/bin/cat > {folder}/text\n'
    )
    program.chmod(0o755)
    return {"PATH": str(folder), "TMUX": "/tmp/tmux-0/default,1,0"}


def test_text_goes_to_the_buffer_of_tmux_and_on_to_the_clipboard_of_its_terminal(tmp_path: Path):
    assert to_tmux("one\ntwo é", fake_tmux(tmp_path))
    assert (tmp_path / "asked").read_text() == "load-buffer -w -\n"
    assert (tmp_path / "text").read_text("utf-8") == "one\ntwo é"


def test_an_older_tmux_takes_it_without_the_option(tmp_path: Path):
    assert to_tmux("text", fake_tmux(tmp_path, refuses="-w"))
    assert (tmp_path / "asked").read_text() == "load-buffer -\n"


def test_outside_tmux_and_without_its_program_nothing_is_run(tmp_path: Path):
    environment = fake_tmux(tmp_path)
    assert not to_tmux("text", environment | {"TMUX": ""})
    assert not to_tmux("text", environment | {"PATH": "/nonexistent"})
    assert not (tmp_path / "asked").exists()


def test_a_terminal_takes_what_fits_into_one_sequence_in_base64():
    assert fits_terminal("a" * (MOST // 4 * 3))
    assert not fits_terminal("a" * (MOST // 4 * 3 + 3))
    assert not fits_terminal("é" * (MOST // 8 * 3 + 3))
