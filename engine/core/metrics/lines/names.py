"""The meaning of a number's name: a loss, a step, an epoch, a rate, or any other metric."""

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from engine.core.metrics.lines.fields import OF_DEVICE, RATE_KEYS, SECONDS
from engine.core.metrics.lines.patterns import P, W

Role = Literal["loss", "val_loss", "part", "lr", "grad_norm", "step", "steps", "epoch", "epochs", "rate", "pace", "time", "known", "other",
               "none"]  # fmt: skip
"""`part`: one of several losses; `pace`: seconds for a step; `time`: a pace if its line says so; `known`: a metric even without a step
on its line; `none`: no metric."""

MAX_KEY = 64  # characters of the longest name of a metric


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """A profile's settings for names: its loss, its step (empty: found by rankdeck), and ignored names, with `*` and `?`."""

    loss: str = ""
    step: str = ""
    ignore: tuple[str, ...] = ()

    def ignores(self, key: str) -> bool:
        """Whether a metric or a bar of this name is left out."""
        return any(fnmatchcase(key.lower(), pattern.lower()) for pattern in self.ignore)


class Meaning(NamedTuple):
    """The meaning of a name. `key`: the metric, or the unit of a rate; `factor`: the multiple of a rate, or seconds in a unit of time."""

    role: Role
    key: str
    factor: float = 1.0


_STEP_OF_RUN = frozenset("num_updates total_timesteps".split())
_RATE_WORDS = {"tps": "tokens/s", "tgs": "tokens/s", "wps": "tokens/s", "ups": "it/s", "fps": "samples/s", "ips": "samples/s",
               "sps": "samples/s", "throughput": "throughput"}  # fmt: skip


@lru_cache(maxsize=4096)
def meaning_of(name: str, unit: str, names: Names) -> Meaning:
    """The meaning of a number with this name. `name`: as printed, with the words before it. `unit`: in lower case."""
    lower = name.lower()
    if names.loss and _is_named(lower, names.loss):
        return Meaning("loss", "loss")
    if names.step and _is_named(lower, names.step):
        return Meaning("step", lower)
    found = _meaning(name, lower, unit)
    if found.role in ("loss", "part") and names.loss:
        key = _key(name)
        return Meaning("none", "") if key == "loss" else Meaning("other", key)
    if found.role == "step" and names.step:
        return Meaning("none", "")
    return found


def _is_named(lower: str, wanted: str) -> bool:
    wanted = wanted.lower()
    return lower == wanted or lower.endswith(" " + wanted)


def _meaning(name: str, lower: str, unit: str) -> Meaning:
    bare = P.quiet_end.sub("", lower).rpartition("(")[2].rstrip(".")  # `Metrics (step 100`, `done (loss: 2.3`
    if lower == "up.":  # Marian's updates
        return Meaning("step", "up")
    if P.sum.search(bare):
        return Meaning("none", "")
    if (sentence := bare.removesuffix(" is").removesuffix(" was")).endswith("loss"):
        bare = sentence  # `the loss is 2.3`
    words = P.word_breaks.split(bare)
    last = words[-1]
    if loss := _loss(bare, words, unit):
        return Meaning(loss, _key(name))
    step = _step(bare, words)
    if step is None and " " not in name and (snake := P.camel.sub("_", name).lower()) != lower:
        step = _step(snake, snake.split("_"))  # `globalStep`
    if step:
        return Meaning(step, last)
    if last in ("lr", "learning_rate") or words[-2:] == ["learning", "rate"]:
        is_own = last != "lr" or bare == "lr" or bare.endswith((" lr", "train/lr", "train_lr"))
        return Meaning("lr", "lr") if is_own else Meaning("other", _key(name))
    if words[-2:] == ["grad", "norm"] or last == "gnorm":
        return Meaning("grad_norm", "grad_norm")
    if rate := _rate(name, lower):
        key = rate[0] + (OF_DEVICE if P.of_device.search(lower) and rate[0] in RATE_KEYS.values() else "")
        return Meaning("none", "") if _is_held_out(words) else Meaning("rate", key, rate[1])
    if pace := P.pace_name.match(lower):
        told = pace["unit"] or (pace["end"] or "").strip(" _()")
        return Meaning("pace", "it/s", SECONDS.get(unit or told, 1.0))
    if last == "time" and bare.rpartition(" ")[2] == "time":
        return Meaning("time", _key(name), SECONDS.get(unit, 1.0))
    if last in W.not_metrics or bare in W.not_metrics:
        return Meaning("none", "")
    return Meaning("known" if P.known.match(bare.rpartition(" ")[2]) or P.known.match(last) else "other", _key(name))


def _loss(bare: str, words: list[str], unit: str) -> Literal["loss", "val_loss", "part"] | None:
    if unit in ("%", "x"):
        return None
    if "loss" not in words:
        own = bare.rpartition(" ")[2]
        if own.rpartition("/")[2] == "crossentropyloss":
            return "val_loss" if _is_held_out(words) else "loss"
        is_alias = own.rpartition("/")[2].partition("-")[0] in W.aliases
        is_glued = own.endswith("loss") and own != "loss"
        return "part" if own.startswith("l_") or ((is_alias or is_glued) and not _is_held_out(words)) else None
    at = len(words) - 1 - words[::-1].index("loss")
    before, after = words[:at], words[at + 1 :]
    if any(not (word in W.loss_of_each or word in W.plain or word in W.held_out) for word in after):
        return None if W.no_loss & set(after) or f"loss {after[0]}" in bare else "part"
    if _is_held_out(words):
        return "val_loss"
    if before[-2:] == ["cross", "entropy"] or before[-1:] == ["crossentropy"]:
        return "loss"
    if before and before[-1] in W.other_losses:
        return None
    joined = bare.rpartition(" ")[2]  # `aux_loss` is another loss, `Current loss` is not
    is_glued = joined != "loss" and not joined.startswith("loss")
    return "part" if before and (before[-1] in W.components or (is_glued and before[-1] not in W.plain)) else "loss"


def _is_held_out(words: list[str]) -> bool:
    return not W.held_out.isdisjoint(words)


def _step(bare: str, words: list[str]) -> Literal["step", "steps", "epoch", "epochs"] | None:
    last, own = words[-1], bare.rpartition(" ")[2]
    if words[-2:-1] == ["per"] or words[0] == "fps":  # `time per epoch`, `fps step`
        return None
    if own in ("step_num", "epoch_num"):
        return "step" if own == "step_num" else "epoch"
    one = last[:-1] if last.endswith("s") else last
    if last in W.epoch and (own == last or words[-2:-1] in (["current"], ["train"], ["training"], ["trainer"])):
        return "epoch"
    if own in _STEP_OF_RUN or (last in W.step):
        if own == last or own in _STEP_OF_RUN or words[-2] in W.step_prefixes:
            return "step"
        if words[-2] not in W.total_prefixes:
            return None
    if last.endswith("s") and one in W.step | W.epoch:
        is_total = words[-2:-1] and words[-2] in W.total_prefixes
        if is_total or bare == last:
            return "epochs" if one in W.epoch else "steps"
    return None


def _rate(name: str, lower: str) -> tuple[str, float] | None:
    inside = P.in_brackets.search(lower)
    for text in (inside[1] if inside else "", P.camel.sub("_", name).lower(), lower):
        found = P.rate_name.match(text)
        if found:
            word = found[1]
            if word in RATE_KEYS:
                return RATE_KEYS[word], 1.0
            if word[1:] in RATE_KEYS and word[0] in "km":
                return RATE_KEYS[word[1:]], 1e3 if word[0] == "k" else 1e6
    if lower == "fps total":
        return "samples/s", 1.0
    key = _RATE_WORDS.get(P.word_breaks.split(lower)[-1]) if not inside else None
    return (key, 1.0) if key else None


def _key(name: str) -> str:
    return P.quiet_end.sub("", name).strip(" -|")[-MAX_KEY:]
