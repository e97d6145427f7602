"""Which texts are secrets, and how they are shown: one place for variables, arguments, shell lines and settings. Two signs show a secret:
the name of its variable or option, and its own shape. `hidden` looks for both in any text, so `--token abc`, `token=abc`, `{"token":
"abc"}`, `Authorization: Bearer abc` and `https://me:abc@host` are treated alike."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from engine.core.patterns import late
from engine.core.plan.plan import LaunchPlan

HIDDEN = "•••"  # shown instead of a secret

_SECRET_NAME = late(
    r"(?:^|[\W_])(?:(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!cls_)(?<!sep_)(?<!mask_)(?<!image_)(?<!stop_)token"
    r"|secret|password|passwd|pass|pwd|passphrase|passcode|credentials?|cookie|auth|authorization|dsn|webhook|signature|sig"
    r"|(?:api|access|private|secret|account|shared_?access|encryption|auth|ssh|master)_?keys?(?:_id)?)$|^key$"
)
"""Names whose value is a secret, by their last words: `api_token`, `hub-token`, `AccountKey`. `max_tokens`, `pad_token` and
`num_key_value_heads` are none."""

_SECRET_VARIABLE = late(
    r"^(?!(?:OLD)?PWD$).*?"  # the shell's own variables
    r"(?:TOKEN|KEY|SECRET|(?<!BY)(?<!COM)PASS|PWD|AUTH(?!ORS?(?:_|$))|CREDENTIAL|COOKIE|(?:^|_)DSN(?:_|$)|WEBHOOK)",
    re.IGNORECASE,
)
"""Names of environment variables whose values are never shown, put into argv, or written to a journal. They are judged more strictly
than names of arguments, because a variable that is hidden without need costs nobody anything."""

_SHAPES = late(
    r"(?P<keep>://[^/\s:@'\"]*:)[^/\s@'\"]+(?=@)"  # the password in a URL
    r"|(?P<dsn>://)[0-9a-f]{32}(?::[0-9a-f]{32})?(?=@)"  # Sentry
    r"|(?P<hook>hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/)[\w/@-]+"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|gldt-|glrt-|hf_|sk-|[rs]k_(?:live|test)_|xox[abeoprs]-|xapp-|npm_|pypi-|dop_v1_|shpat_|lin_api_"
    r"|AKIA|ASIA|ABIA|ACCA|AKC|AIza|ya29\.|SG\.|eyJ[A-Za-z0-9_-]{8,}\.|nvapi-|r8_|dapi|PMAK-|sq0(?:atp|csp)-|EAACEdEose0cBA|key-)[\w.=+/-]{8,}"
    r"|(?<![\w/.-])[0-9a-f]{32,}(?![\w/.-])"
    r"|(?<![\w+=/.-])(?P<random>[A-Za-z0-9_+=]{32,})(?![\w/.-])"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*)"
)
"""Patterns of tokens, passwords and private keys, whatever the name beside them. The services document these prefixes;
detect-secrets, gitleaks and GitHub's secret scanning list the same ones."""

_PAIR = late(r"""(?<![\w.-])(?P<name>[\w.-]+)["']?\s*[=:]\s*["']?""")
"""The name before a value: `name=value`, `name: value` and `"name": "value"`, wherever they stand in a text."""

_VALUE = late(r"""(?:(?:Bearer|Basic|Token|Digest)\s+)?[^"'\s,;&}\])]+""")

_LOGIN_OPTIONS = frozenset(("-u", "--user", "--proxy-user", "-U"))
"""Options of curl, wget and their kind whose value is `user:password`."""

_SHELL_WORD = late(r"""(?:[^\s'";&|]|'[^']*'|"[^"]*")+""")


def is_secret(name: str, value: str) -> bool:
    """Whether the value of an environment variable must not be shown."""
    return bool(_SECRET_VARIABLE.search(name)) or _hide_shapes(value) != value


def shown_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables, with secrets hidden."""
    return {name: HIDDEN if is_secret(name, value) else value for name, value in env.items()}


def hidden(text: str) -> str:
    """A text with the secrets in it hidden, found by the names before them and by their shapes."""

    parts, end = [], 0
    for found in _PAIR.finditer(text):
        if found.end() < end or not _is_secret_name(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        if value and not _is_plain(value[0]):
            parts += [text[end : found.end()], HIDDEN]
            end = value.end()
    return _hide_shapes("".join([*parts, text[end:]]))


def shown_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with secrets hidden, also where an option before a word names it: `--token VALUE`."""
    return list(_shown(["", *words], words))


def shown_shell(text: str) -> str:
    """Shell lines, such as `launch.setup`, with secrets hidden."""
    words = _SHELL_WORD.findall(text)
    replaced = iter(_shown(["", *words], words))
    return _SHELL_WORD.sub(lambda _: next(replaced), text)


def shown_value(name: str, value: Any) -> str:
    """The value of a setting, in one line. `name` is its key or its option."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(shown_words([*map(str, value)])).replace("\n", " ")
    text = str(value).replace("\n", " ")
    return HIDDEN if _names_secret(name, text) else hidden(text)


def without_secrets(plan: LaunchPlan) -> LaunchPlan:
    """The same plan, to be shown: secrets in its variables, arguments and shell lines are hidden."""
    submission = plan.submission
    return replace(
        plan,
        env=shown_environment(plan.env),
        env_defaults=shown_environment(plan.env_defaults),
        launch=replace(plan.launch, setup=shown_shell(plan.launch.setup), wrap=tuple(shown_words(plan.launch.wrap))),
        program=replace(plan.program, args=tuple(shown_words(plan.program.args))),
        rank=replace(plan.rank, wrap=tuple(shown_words(plan.rank.wrap))),
        submission=replace(submission, script=shown_shell(submission.script)) if submission else None,
    )


def _shown(before: Iterable[str], words: Sequence[str]) -> Iterable[str]:
    for option, word in zip(before, words, strict=False):
        user, colon, _ = word.strip("'\"").partition(":")
        if option.startswith("-") and "=" not in option and not word.startswith("-") and _names_secret(option, word):
            yield HIDDEN
        elif colon and option in _LOGIN_OPTIONS:
            yield f"{user}:{HIDDEN}"
        else:
            name, equals, value = word.partition("=")
            whole = equals and not set(name) & set("{}[]\"':?&") and _names_secret(name, value.strip("'\""))
            yield f"{name}={HIDDEN}" if whole else hidden(word)


def _hide_shapes(text: str) -> str:
    def shown(found: re.Match[str]) -> str:
        if found["random"] and not all(re.search(kind, found["random"]) for kind in ("[0-9]", "[a-z]", "[A-Z]")):
            return found[0]
        return f"{found['keep'] or found['dsn'] or found['hook'] or ''}{HIDDEN}"

    return _SHAPES.sub(shown, text)


def _names_secret(name: str, value: str) -> bool:
    return _is_secret_name(name) and not _is_plain(value)


def _is_plain(value: str) -> bool:
    """Whether a value can be no secret: a number, as in `--pass 2`, or a yes or no."""
    return value.replace(".", "", 1).isdigit() or value.lower() in ("true", "false", "none", "null", "yes", "no", "")


def _is_secret_name(name: str) -> bool:
    if name.isupper():
        return bool(_SECRET_VARIABLE.search(name))
    return bool(_SECRET_NAME.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").strip("_")))
