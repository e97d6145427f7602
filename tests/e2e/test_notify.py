"""What a followed launch tells the user's command, and their webhook, of the end of a run."""

import json
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tests.support import from_table

TELL = """#!/bin/sh
{ printf '%s\\n' "$#" "$1" "$RANKDECK_EVENT" "$RANKDECK_RUN" "$RANKDECK_PROFILE" "$RANKDECK_TEXT"; } >> told
"""


@from_table
def test_the_users_command_is_told_once_in_its_environment_how_a_run_ended(
    script, status, told, rankdeck, home, write_script, write_profile, work
):
    tell = write_script("tell", TELL)
    tell.chmod(0o700)
    home.mkdir(exist_ok=True)
    settings = home / "config.toml"
    settings.write_text(f'[notify]\ncommand = ["{tell}", "a b; $HOME"]\n')
    settings.chmod(stat.S_IRUSR | stat.S_IWUSR)

    done = rankdeck("launch", write_profile(script, launch={"on_failure": "stop"}))

    assert done.returncode == status, done.stderr
    run = next((home / "runs").iterdir()).name
    lines = (work / "told").read_text().splitlines()
    assert lines[:5] == ["1", "a b; $HOME", told[0], run, "job"]
    assert len(lines) == 6, "told once, in one line"
    assert lines[5].startswith(told[1])
    assert "\x1b" not in lines[5]
    assert not (work / "pwned").exists()


def test_a_webhook_is_told_how_a_run_ended_and_its_address_is_not_shown(rankdeck, home, write_profile, work):
    home.mkdir(exist_ok=True)
    settings = home / "config.toml"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hook) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            settings.write_text(f'[notify]\nwebhook = "http://127.0.0.1:{server.server_port}/secret"\n')
            settings.chmod(stat.S_IRUSR | stat.S_IWUSR)
            done = rankdeck("launch", write_profile("print('loss 0.5')"))
        finally:
            server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "notify" not in done.stderr
    run = next((home / "runs").iterdir()).name
    assert _Hook.told == [
        ("/secret", {"event": "end", "run": run, "profile": "job", "reason": "succeeded", "text": f"{run}: succeeded"})
    ]
    for shown in (rankdeck("config"), rankdeck("config", "--json")):
        assert f"http://127.0.0.1:{server.server_port}/..." in shown.stdout
        assert "secret" not in shown.stdout


class _Hook(BaseHTTPRequestHandler):
    told: ClassVar[list[tuple[str, object]]] = []

    def do_POST(self) -> None:
        self.told.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
