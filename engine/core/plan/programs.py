"""The question before a profile is trusted: what it may run, and what the answer does not cover."""

import shlex

from engine.core.plan.profile import AUTO_PRELOAD, Profile
from engine.core.plan.secrets import shown_environment, shown_shell

NOT_COVERED = (
    "A yes covers this file and the hostfile, Python and wrap that it names in its folder, as they are now. It does not cover the code of "
    "scripts, modules and environments: whoever can change them runs code as you."
)


def programs_of(profile: Profile) -> dict[str, str]:
    """Everything in a profile that decides which programs run, by the key of the profile, with secrets hidden."""
    launch, recipe, layout = profile.launch, profile.recipe, profile.layout
    modules = () if launch.preload == AUTO_PRELOAD else launch.preload
    found = {
        "layout.hostfile": layout.hostfile,
        "layout.ssh_options": shlex.join(layout.ssh_options),
        "launch.setup": launch.setup,
        "launch.wrap": shlex.join(launch.wrap),
        "launch.python": launch.python,
        "launch.preload": shlex.join(modules),
        "recipe.script": recipe.script,
        "recipe.module": recipe.module,
        "rank.wrap": shlex.join(profile.rank.wrap),
    }
    env = shown_environment({**profile.backend.env, **profile.env})
    named = {key: shown_shell(value) for key, value in found.items() if value}
    return named | {f"env.{name}": value for name, value in env.items()}


def trust_detail(profile: Profile, path: str) -> str:
    """The meaning of a yes. `path`: the file of the profile."""
    lines = [f"{path} is a profile that other people may have written and that you have not launched yet. It names:"]
    return "\n".join([*lines, *(f"{key}  {value}" for key, value in programs_of(profile).items()), "", NOT_COVERED])
