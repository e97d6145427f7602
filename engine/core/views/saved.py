"""The checkpoints that an attempt has left, and how many steps are lost: for front ends."""

from engine.core.numbers import age
from engine.core.run.state import RunState
from engine.core.views.view import SavedView
from engine.core.words import count


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
        after = newest.at - told_at if 0 < told_at <= newest.at else None
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
