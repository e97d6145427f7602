"""The checkpoints that an attempt has left, and how many steps are lost: for the journal and for front ends."""

from collections.abc import Sequence

from msgspec.structs import replace

from engine.core.metrics.progress import RankProgress
from engine.core.numbers import age
from engine.core.run.events import Checkpoint, CheckpointsFound, Found
from engine.core.run.state import RunState
from engine.core.terminal_text import visible
from engine.core.views.view import SavedView
from engine.core.words import count

FILE_CLOCK = 2.0  # seconds by which the times of files and of a rank's reports about them may differ
TICK = 0.02  # seconds by which the times that Linux gives to files may be too early


def newest_checkpoint(progress: Sequence[RankProgress]) -> RankProgress:
    """The numbers of the rank that has reported the newest checkpoint, if any has."""
    return max(progress, key=lambda one: one.checkpoint_at or 0.0)


def found_event(found: Found, state: RunState, progress: Sequence[RankProgress], at: float) -> CheckpointsFound:
    """The event that tells what an attempt has left. A checkpoint that a rank reports by `rankdeck.log` is valid even if no file of it is found. `found`: files; any user of the node
    may have chosen their names. `at`: when the attempt was over, seconds since the epoch."""
    newest, said = _shown(found.newest), newest_checkpoint(progress)
    if newest is not None and newest.at < state.launched_at - FILE_CLOCK:
        newest = None
    if said.checkpoint_at is not None and (newest is None or newest.at < said.checkpoint_at + FILE_CLOCK):
        if newest is None or newest.step != said.checkpoint:
            newest = Checkpoint(name="", at=0.0)
        newest = replace(newest, step=said.checkpoint, at=said.checkpoint_at)
    texts = {"lack": visible(found.lack), "moved": visible(found.moved)}
    step = max((one.step for one in progress if one.step is not None), default=None)
    found = replace(found, newest=newest, torn=_shown(found.torn), **texts)
    return CheckpointsFound(at=at, attempt=state.attempt, found=found, step=step)


def _shown(checkpoint: Checkpoint | None) -> Checkpoint | None:
    return None if checkpoint is None else replace(checkpoint, name=visible(checkpoint.name))


def saved_view(state: RunState) -> SavedView | None:
    """None: this attempt is not over, has succeeded, or nothing can be said."""
    if state.saved is None:
        return None
    found, last = state.saved.found, state.saved.step
    newest, torn, told_at = found.newest, found.torn, found.told_at
    after = lost_steps = lost_seconds = None
    words = []
    if newest is not None:
        name = f"checkpoint of step {newest.step}" if newest.step is not None else f"checkpoint {newest.name}"
        after = max(0.0, newest.at - told_at) if 0 < told_at <= newest.at + TICK else None
        lost_seconds = max(0.0, (told_at or state.saved.at) - max(newest.at, state.attempt_since))
        if newest.step is not None and last is not None and last >= newest.step:
            lost_steps = last - newest.step
        if after is not None:
            words.append(f"{name} was saved {after:.0f} s after the signal")
            words += [f"{count(lost_steps, 'later step')} lost"] if lost_steps else []
        elif lost_steps is None and newest.at < state.attempt_since:
            words.append(f"no checkpoint in this attempt; {name} is the newest")
        elif lost_steps == 0:
            words.append(f"{name} is the newest, and no step is lost")
        else:
            since = f"step {newest.step}" if newest.step is not None else newest.name
            lost = age(lost_seconds)
            lost = lost if lost_steps is None else f"{count(lost_steps, 'step')} ({lost})"
            words.append(f"no checkpoint since {since}: {lost} {'is' if lost_steps == 1 else 'are'} lost")
    elif last is not None:
        words.append(f"no checkpoint of this run was found; it was at step {last}")
    if torn is not None:
        moved = f", and is now {found.moved}" if found.moved else ""
        words.append(f"{torn.name} was being written when attempt {state.attempt} ended{moved}")
        words += [f"{newest.name} is whole"] if newest is not None and newest.name else []
    if not words:
        return None
    return SavedView(
        words="; ".join(words), found=found, after_signal=after, lost_steps=lost_steps, lost_seconds=lost_seconds
    )
