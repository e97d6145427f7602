"""`rankdeck config`: where the user's settings are, and the resulting values."""

import shlex

import click
import msgspec

from engine.commands.arguments import JSON
from engine.commands.output import print_json, print_line, print_table
from engine.runs.paths import settings_file
from engine.runs.settings import read_settings


@click.command()
@click.option("--keys", "all_keys", is_flag=True, help="List every key of the app: its id, the keys and what they do.")
@JSON
def config(*, all_keys: bool, as_json: bool) -> None:
    """Show where your settings are, and their values; check the file.

    The file is config.toml in your own folder; without it, the defaults count.
    """
    from tui.keymap import check_theme, key_table, keymap_of

    settings, places = read_settings()
    check_theme(settings, places)
    rows = key_table(keymap_of(settings, places))
    path, notify = settings_file(), settings.notify
    if all_keys:
        if as_json:
            print_json([{"id": id, "keys": keys.split(" "), "help": text} for id, keys, text in rows])
        else:
            print_table([("id", "keys", "what it does"), *rows])
        return
    if as_json:
        shown = msgspec.structs.replace(settings, notify=msgspec.structs.replace(notify, webhook=notify.shown_webhook))
        print_json({"path": str(path), "exists": path.exists(), **msgspec.to_builtins(shown)})
        return
    print_line(str(path) if path.exists() else f"{path} (does not exist; these are the defaults)")
    words = [("theme", settings.theme), *((f"keys.{id}", keys) for id, keys, _ in rows if id in settings.keys)]
    words += [("units.memory", settings.units.memory), ("units.time", settings.units.time)]
    words += [("profiles", " ".join(map(shlex.quote, settings.profiles)) or "-")]
    words += [("notify.on", " ".join(notify.on)), ("notify.bell", "true" if notify.bell else "false")]
    words += [("notify.desktop", notify.desktop), ("notify.command", shlex.join(notify.command) or "-")]
    words += [("notify.webhook", notify.shown_webhook or "-")]
    print_table(words)
