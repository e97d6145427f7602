"""What the name of a number says: a loss, a step, an epoch, a rate, or any other metric."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from engine.core.metrics.fields import RATE_KEYS, SECONDS

Role = Literal["loss", "val_loss", "part", "lr", "grad_norm", "step", "steps", "epoch", "epochs", "rate", "pace", "time", "known", "other",
               "none"]  # fmt: skip
"""`part`: one of several losses; `pace`: seconds for a step; `time`: a pace if its line says so; `known`: a metric even without a step
on its line; `none`: no metric."""

MAX_KEY = 64
"""Characters of the longest name of a metric."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile says about names: its loss, its step (empty: found by rankdeck), and what is ignored, with `*` and `?`."""

    loss: str = ""
    step: str = ""
    ignore: tuple[str, ...] = ()

    def ignores(self, key: str) -> bool:
        """Whether a metric or a bar of this name is left out."""
        return any(fnmatchcase(key.lower(), pattern.lower()) for pattern in self.ignore)


class Meaning(NamedTuple):
    """What a name says. `key`: of the metric; of a rate its unit; `factor`: for a rate its multiple, for a pace seconds in one."""

    role: Role
    key: str
    factor: float = 1.0


HELD_OUT = frozenset(
    "val valid validation validate validating eval evaluation evaluate evaluating test testing dev heldout sanity".split()
)
_TRAIN = frozenset("train training".split())
_PLAIN = _TRAIN | frozenset(
    "total avg average mean batch running smooth smoothed lm mlm ce epoch step current cur global final overall combined last all".split()
)
_NO_LOSS = frozenset("scale scaler fn func function weight weights mask type name".split())
_SUM = re.compile(r"total[ _]train(?:ing)?[ _]loss\Z")
"""The sum over an epoch."""
_ALIASES = frozenset("xent nll cost cross_entropy crossentropy bce objective".split())
_STEP = frozenset("step iter it itr iteration batch minibatch update num_updates updates".split())
_STEP_OF_RUN = frozenset("num_updates total_timesteps".split())
_STEP_PREFIXES = frozenset("global train training opt optimizer current epoch trainer learner".split())
_EPOCH = frozenset(("epoch", "ep", "epch"))
_TOTAL_PREFIXES = frozenset("max num total train optimization training".split())
_KNOWN = re.compile(
    r"(?:top[-_]?[15]|acc(?:uracy)?(?:@[15]|[-_/]?top[-_]?[15])?|ppl|perplexity|bleu|rouge[\w-]*|f1|auc|auroc|m?ap(?:50)?(?:[-_]95)?|m?iou|wer|cer"
    r"|rewards?|returns?|score|mfu|prec(?:ision)?(?:@[15])?|recall|fid|psnr|ssim|dice|entropy|kl)\Z"
)
_NOT_METRICS = frozenset(
    "rank ranks local_rank pid gpu gpus cuda device devices node nodes worker workers port seed line lines lineno version v_num world_size thread threads process processes proc id elapsed eta date remaining in to of at for is than after took reached from by and the on runtime train_runtime eval_runtime time_ms".split()
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[ _./-]+")
_RATE_NAME = re.compile(
    r"(?:.*[ _./-])?(?!(?:gpu|device|rank|core|thread)[ _]?[/p])([a-z]+)[ _]?(?:(?:/|per)[ _]?(?:gpu|device|rank)[ _]?)?(?:/|per)[ _]?s(?:ec(?:ond)?)?s?"
    r"(?:[ _/](?:per[ _])?(?:gpu|device|rank|core|thread))?\Z"
)
_RATE_WORDS = {"tps": "tokens/s", "tgs": "tokens/s", "wps": "tokens/s", "ups": "it/s", "fps": "samples/s", "ips": "samples/s",
               "sps": "samples/s", "throughput": "throughput"}  # fmt: skip
_PACE_NAME = re.compile(
    r"(?:.*[ _./-])?(?:(?:iter|iteration|step|batch)[ _]?time|step_timing(?: in s)?|btime|step_avg|time[ _/](?:per[ _])?(?:iter|iteration|step|batch|it)|dt"
    r"|(?P<unit>ms|s|sec|seconds)(?:/|[ _]per[ _])(?:it|iter|iteration|step|batch|b))(?P<end>[ _]?\(?(?:ms|s|sec)\)?)?\Z"
)
_IN_BRACKETS = re.compile(r"[ _]*\(([^()]*)\)\Z")
_QUIET_END = re.compile(r"[ _]*\([^()]*\)\Z")


@lru_cache(maxsize=4096)
def meaning_of(name: str, unit: str, names: Names) -> Meaning:
    """What a number of this name is.

    Args:
        name: as printed, with the words before it.
        unit: of the number, in lower case.
        names: what the profile says.
    """
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
    bare = _QUIET_END.sub("", lower).rstrip(".")  # `Step... (100` of flax
    if lower == "up.":  # Marian's updates
        return Meaning("step", "up")
    if _SUM.search(bare):
        return Meaning("none", "")
    if (sentence := bare.removesuffix(" is").removesuffix(" was")).endswith("loss"):
        bare = sentence  # `the loss is 2.3`
    words = _WORDS.split(bare)
    last = words[-1]
    if loss := _loss(bare, words, unit):
        return Meaning(loss, _key(name))
    if step := _step(bare, words):
        return Meaning(step, last)
    if last in ("lr", "learning_rate") or words[-2:] == ["learning", "rate"]:
        is_own = last != "lr" or bare == "lr" or bare.endswith((" lr", "train/lr", "train_lr"))
        return Meaning("lr", "lr") if is_own else Meaning("other", _key(name))
    if words[-2:] == ["grad", "norm"] or last == "gnorm":
        return Meaning("grad_norm", "grad_norm")
    if rate := _rate(name, lower):
        return Meaning("none", "") if _is_held_out(words) else Meaning("rate", rate[0], rate[1])
    if pace := _PACE_NAME.match(lower):
        told = pace["unit"] or (pace["end"] or "").strip(" _()")
        return Meaning("pace", "it/s", SECONDS.get(unit or told, 1.0))
    if last == "time" and bare.rpartition(" ")[2] == "time":
        return Meaning("time", _key(name), SECONDS.get(unit, 1.0))
    if last in _NOT_METRICS or bare in _NOT_METRICS:
        return Meaning("none", "")
    return Meaning("known" if _KNOWN.match(bare.rpartition(" ")[2]) or _KNOWN.match(last) else "other", _key(name))


def _loss(bare: str, words: list[str], unit: str) -> Literal["loss", "val_loss", "part"] | None:
    if unit in ("%", "x"):
        return None
    if "loss" not in words:
        own = bare.rpartition(" ")[2]
        if own.rpartition("/")[2] == "crossentropyloss":
            return "val_loss" if _is_held_out(words) else "loss"
        return (
            "part"
            if own.partition("-")[0] in _ALIASES
            or own.startswith("l_")
            or (own.endswith("loss") and own != "loss" and not _is_held_out(words))
            else None
        )
    at = len(words) - 1 - words[::-1].index("loss")
    before, after = words[:at], words[at + 1 :]
    if any(word not in ("step", "epoch", "value") and word not in _PLAIN and word not in HELD_OUT for word in after):
        return None if _NO_LOSS & set(after) or f"loss {after[0]}" in bare else "part"
    if _is_held_out(words):
        return "val_loss"
    if before[-2:] == ["cross", "entropy"] or before[-1:] == ["crossentropy"]:
        return "loss"
    joined = bare.rpartition(" ")[2]  # `aux_loss` is another loss, `Current loss` is not
    glued = before[-1:] if joined != "loss" and not joined.startswith("loss") else []
    return "part" if glued and glued[0] not in _PLAIN else "loss"


def _is_held_out(words: list[str]) -> bool:
    return not HELD_OUT.isdisjoint(words)


def _step(bare: str, words: list[str]) -> Literal["step", "steps", "epoch", "epochs"] | None:
    last, own = words[-1].lstrip("("), bare.rpartition(" ")[2].lstrip("(")  # `Metrics (step 100)`
    if words[-2:-1] == ["per"] or words[0] == "fps":  # `time per epoch`, `fps step`
        return None
    if own in ("step_num", "epoch_num"):
        return "step" if own == "step_num" else "epoch"
    one = last[:-1] if last.endswith("s") else last
    if last in _EPOCH and (own == last or words[-2:-1] in (["current"], ["train"], ["training"], ["trainer"])):
        return "epoch"
    if own in _STEP_OF_RUN or (last in _STEP):
        if own == last or own in _STEP_OF_RUN or words[-2] in _STEP_PREFIXES:
            return "step"
        return None
    if last.endswith("s") and one in _STEP | _EPOCH:
        is_total = words[-2:-1] and words[-2] in _TOTAL_PREFIXES
        if is_total or bare == last:
            return "epochs" if one in _EPOCH else "steps"
    return None


def _rate(name: str, lower: str) -> tuple[str, float] | None:
    inside = _IN_BRACKETS.search(lower)
    for text in (inside[1] if inside else "", _CAMEL.sub("_", name).lower(), lower):
        found = _RATE_NAME.match(text)
        if found:
            word = found[1]
            if word in RATE_KEYS:
                return RATE_KEYS[word], 1.0
            if word[1:] in RATE_KEYS and word[0] in "km":
                return RATE_KEYS[word[1:]], 1e3 if word[0] == "k" else 1e6
    if lower == "fps total":
        return "samples/s", 1.0
    key = _RATE_WORDS.get(_WORDS.split(lower)[-1]) if not inside else None
    return (key, 1.0) if key else None


def _key(name: str) -> str:
    return _QUIET_END.sub("", name).strip(" -|")[-MAX_KEY:]
