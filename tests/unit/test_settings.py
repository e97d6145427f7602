"""The user's settings: what is read, what is refused and at which line."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.core.errors import ProfileError
from engine.core.settings import Look, Notify, Settings, Units, parse_settings
from engine.planning.profiles import list_profiles, save_profile
from engine.runs.paths import settings_file
from engine.runs.settings import change_settings, keep_settings, read_settings
from tests.support import PATIENCE, from_table, parse_profile


def wrong(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_settings(text, file="config.toml")
    return str(caught.value)


def test_keys_may_be_bare_or_quoted_one_or_several():
    settings, places = parse_settings(
        '[keys]\nrun.kill = "X"\n"run.stop" = ["S", "f9"]\n[notify]\nbell = true\n', file="config.toml"
    )
    assert settings.keys == {"run.kill": ("X",), "run.stop": ("S", "f9")}
    assert settings.notify == Notify(bell=True)
    assert places.where(("keys", "run", "kill")) == "config.toml:2"
    assert places.where(("keys", "run", "stop")) == "config.toml:3"


@from_table
def test_what_is_wrong_is_named_with_its_line(text: str, said: str):
    assert wrong(text).startswith(said)


def test_of_a_webhook_only_its_host_is_shown():
    for address in ("https://x.org:8443/hooks/secret?a=b", "https://x.org:8443?secret"):
        settings, _ = parse_settings(f'[notify]\nwebhook = "{address}"\n', file="config.toml")
        assert settings.notify.is_on
        assert settings.notify.shown_webhook == "https://x.org:8443/..."
    assert (
        parse_settings('[notify]\nwebhook = "http://[::1]:80/s"', file="")[0].notify.shown_webhook
        == "http://[::1]:80/..."
    )
    assert Notify().shown_webhook == ""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RANKDECK_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rankdeck").mkdir()
    return tmp_path / "rankdeck" / "config.toml"


def test_without_a_file_the_defaults_count(file: Path):
    assert settings_file() == file
    assert read_settings()[0] == Settings()
    assert not Settings().notify.is_on


def test_the_file_is_read_where_xdg_says(file: Path):
    file.write_text('theme = "rankdeck-light"\n')
    file.chmod(0o644)
    assert read_settings()[0].theme == "rankdeck-light"


@pytest.mark.parametrize(("mode", "folder"), [(0o666, 0o700), (0o600, 0o777)])
def test_a_file_that_others_can_write_or_replace_is_refused(file: Path, mode: int, folder: int):
    file.write_text('theme = "rankdeck-light"\n')
    file.chmod(mode)
    file.parent.chmod(folder)
    with pytest.raises(ProfileError, match="can be written by other users"):
        read_settings()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.write_bytes(b'theme = "\xff"\n')])
def test_what_is_no_text_file_is_refused(file: Path, make):
    make(file)
    if file.is_file():
        file.chmod(0o600)
    with pytest.raises(ProfileError, match=r"is not a file|is not UTF-8"):
        read_settings()


def test_a_theme_that_is_kept_changes_nothing_else(file: Path):
    keep_settings({("theme",): "rankdeck-light"})
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text('# mine\n[keys]\nrun.kill = "X"  # not x\n')
    file.chmod(0o640)
    keep_settings({("theme",): "nord"})
    assert file.read_text() == '# mine\ntheme = "nord"\n\n[keys]\nrun.kill = "X"  # not x\n'
    assert file.stat().st_mode & 0o777 == 0o640
    assert read_settings()[0] == Settings(theme="nord", keys={"run.kill": ("X",)})


def test_values_of_tables_are_kept_too(file: Path):
    keep_settings({("look", "charts"): 4, ("look", "hidden"): ("loss", "io"), ("profiles",): ["/a b"]})
    found = read_settings()[0]
    assert (found.look, found.profiles) == (Look(charts=4, hidden=("loss", "io")), ("/a b",))


def test_profiles_are_found_in_folders_of_the_settings_and_saved_in_the_first(file: Path, tmp_path: Path):
    own, open_to_all = tmp_path / "own", tmp_path / "shared"
    for folder in (own, open_to_all):
        folder.mkdir()
        (folder / f"{folder.name}.toml").write_text('schema = 1\nname = "x"\n[recipe]\nname = "linear"\n')
    own.chmod(0o700)
    open_to_all.chmod(0o777)
    keep_settings({("profiles",): [str(own), str(open_to_all)]})
    found = {entry.name: entry for entry in list_profiles()}
    assert found["own"].source == "yours"
    assert found["shared"].source == "shared"
    assert save_profile(parse_profile('schema = 1\nname = "new"\n[recipe]\nname = "linear"\n', file="x")).parent == own


def test_settings_that_are_wrong_are_not_changed_by_a_theme(file: Path):
    file.write_text("theme =\n")
    with pytest.raises(ProfileError):
        keep_settings({("theme",): "nord"})
    assert file.read_text() == "theme =\n"


def test_units_are_read():
    assert parse_settings('[units]\nmemory = "GB"\n', file="")[0].units == Units(memory="GB", time="local")


def test_of_two_changes_at_once_none_is_lost(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.runs.settings.LOCK_SECONDS", PATIENCE)
    changing, go_on = threading.Event(), threading.Event()

    def slow(now: Settings) -> Mapping[tuple[str, ...], object]:
        changing.set()
        assert go_on.wait(PATIENCE)
        return {("profiles",): ["/slow", *now.profiles]}

    first = threading.Thread(target=change_settings, args=[slow])
    first.start()
    assert changing.wait(PATIENCE)
    others = [
        threading.Thread(target=change_settings, args=[lambda now: {("profiles",): ["/quick", *now.profiles]}])
        for _ in range(4)
    ]
    for other in others:
        other.start()
    go_on.set()
    for thread in (first, *others):
        thread.join(PATIENCE)
    assert read_settings()[0].profiles == ("/quick",) * 4 + ("/slow",)


def test_a_change_that_does_not_end_does_not_stop_others_for_ever(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.runs.settings.LOCK_SECONDS", 0.0)

    def change(_now: Settings) -> Mapping[tuple[str, ...], object]:
        with pytest.raises(ProfileError, match="another rankdeck is changing it"):
            keep_settings({("theme",): "nord"})
        return {("theme",): "rankdeck-light"}

    change_settings(change)
    assert read_settings()[0].theme == "rankdeck-light"
