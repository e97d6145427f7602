"""Signs the supervisor's values in the c10d store, because every process that can connect to the store can write to it.

Each attempt has its own secret, in a private file for the next supervisor and in the environment of the ranks. An attempt that an
older rankdeck has begun has none: nothing is signed there. `rankdeck.elastic` checks the signatures.
"""

import hashlib
import hmac
import json
import secrets

from engine.core.run.state import RankNews
from engine.linux.files import read_file, replace_file
from engine.runs.paths import RunPaths
from engine.supervisor.log import note

NEWS = "rankdeck/elastic/news"  # prefix of the keys under which `rankdeck/store_host.py` puts news into the store


class StoreKeys:
    """The secrets of the attempts of one run."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._secrets: dict[int, str] = {}

    def make(self, attempt: int) -> None:
        """Makes the secret of an attempt that begins, if there is none."""
        if self.of(attempt):
            return
        self._secrets[attempt] = secret = secrets.token_hex(32)
        file = self._paths.store_key(attempt)
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(file, secret.encode())
        except (
            OSError
        ) as error:  # only the next supervisor would read it, and it starts a new attempt if ranks can't rejoin
            note(f"{file}: {error}")

    def of(self, attempt: int) -> str:
        """The secret of an attempt; empty: none."""
        if attempt not in self._secrets:
            try:
                self._secrets[attempt] = read_file(self._paths.store_key(attempt)).decode("ascii")
            except (OSError, UnicodeDecodeError):
                return ""
        return self._secrets[attempt]

    def signed(self, attempt: int, number: int, news: RankNews, ranks: int) -> tuple[str | int, ...]:
        """Signs news for the ranks.

        Args:
            attempt: to whose ranks it goes.
            number: Number of the news in this attempt.
            news: a word and a generation.
            ranks: how many listen. It is not taken from the store, where anybody could change it.
        """
        secret = self.of(attempt)
        return (*news, ranks, signature(secret, number, news)) if secret else (*news, ranks)


def signature(secret: str, number: int, news: RankNews) -> str:
    """Signs one message, as `sign` in `rankdeck.elastic._store.board` does."""
    text = f"{NEWS}/{number} {json.dumps(news)}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
