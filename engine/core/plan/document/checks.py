"""Checks of a profile that types can't express: ranges, names, and keys that exclude each other."""

import re
from collections.abc import Collection, Mapping

from engine.core.plan import profile
from engine.core.plan.batch import check_job
from engine.core.plan.batch.slurm import is_slurm_job
from engine.core.plan.document.places import Places
from engine.core.plan.document.stopping import stop_rule
from engine.core.plan.environment import AUTO, backends_in
from engine.core.plan.layout import MAX_RANKS, LayoutError, groups_of, parse_nodes
from engine.core.words import suggestion

SIGNALS = (profile.UNDERSTOOD, "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGKILL")
"""Steps of a stop ladder: the signal that each program understands, those that a training script may handle, and SIGKILL."""

YEAR = 31_536_000  # seconds: the longest time of a setting
MAX_PRELOAD = 64  # modules in `launch.preload`: an import brings its own dependencies

_BACKEND_HINT = 'write one, such as "gloo", or one for each device: "cpu:gloo,cuda:nccl"'
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

Choices = Mapping[tuple[str, ...], Collection[str]]
"""Values of keys that a registry decides, not the schema: `("backend", "name")`, `("recipe", "name")`."""


def check_choices(profile: profile.Profile, choices: Choices, places: Places | str) -> None:
    """Checks keys whose values name something in a registry. `places`: where its keys stand, or the name of the document, for errors. Raises
    ProfileError: a name is unknown; the hint has the nearest one."""
    if isinstance(places, str):
        places = Places(places, {})
    for (table, key), known in choices.items():
        for value in _named(getattr(getattr(profile, table), key), table):
            if value not in known:
                hint = suggestion(value, known, f"there is: {', '.join(known)}", 0.5)
                raise places.error((table, key), f"there is no {table} {value!r}", hint=hint)


def _named(value: str | tuple[str, ...] | None, table: str) -> list[str]:
    """All names in a key's value: none, one or several. The name of a backend may consist of two."""
    values = [value] if isinstance(value, str) else value or ()
    return [part for one in values for part in (backends_in(one) if table == "backend" else (one,))]


def check_sense(profile: profile.Profile, places: Places) -> None:
    """Checks ranges, names, and keys that exclude each other. Raises ProfileError at the first that is wrong."""
    if not _PROFILE_NAME.match(profile.name):
        hint = "letters, digits, dot, dash and underscore, at most 64"
        raise places.error(("name",), f"{profile.name!r} is not a valid name", hint=hint)
    _check_recipe(profile.recipe, places)
    _check_backend(profile.backend, places)
    _check_layout(profile.layout, places)
    _check_launch(profile.launch, places)
    for section, wrap in (("rank", profile.rank.wrap), ("launch", profile.launch.wrap)):
        if any("\0" in word for word in wrap) or wrap[:1] == ("",):
            raise places.error((section, "wrap"), "has a NUL byte, or an empty first word")
    _check_health(profile.health, places)
    for table, env in ((("env",), profile.env), (("backend", "env"), profile.backend.env)):
        for name, value in env.items():
            if not _ENV_NAME.match(name):
                raise places.error((*table, name), "is not a valid name of an environment variable")
            places.check_text((*table, name), value)
    for pattern in profile.metrics.patterns:
        path = ("metrics", "patterns")
        try:
            compiled = re.compile(pattern.encode())
        except (re.error, RecursionError, OverflowError, UnicodeEncodeError) as error:
            raise places.error(path, f"{pattern!r} is not a regular expression: {error}") from None
        if not compiled.groupindex:
            raise places.error(path, f"{pattern!r} has no named group", hint=r"for example: 'loss[=: ]+(?P<loss>\S+)'")
    try:
        _ = profile.metrics.stop_when and stop_rule(profile.metrics.stop_when)
    except ValueError as error:
        hint = "for example: 'val_loss > best * 1.5 after 200'"
        raise places.error(("metrics", "stop_when"), f"{profile.metrics.stop_when!r} {error}", hint=hint) from None


def _check_recipe(recipe: profile.Recipe, places: Places) -> None:
    chosen = [key for key in ("name", "script", "module") if getattr(recipe, key) is not None]
    if len(chosen) != 1:
        said = "names " + " and ".join(chosen) if chosen else "does not say what to run"
        hint = 'set exactly one of: name = "gpt", script = "train.py", module = "pkg.train"'
        raise places.error(("recipe",), said, hint=hint)
    program = getattr(recipe, chosen[0])
    if program == "":
        raise places.error(("recipe", chosen[0]), "is empty")
    places.check_text(("recipe",), *recipe.args, program)


def _check_health(health: profile.HealthLimits, places: Places) -> None:
    for key, least, most in (
        ("stalled", 1, 1e6),
        ("slow", 1, 1e6),
        ("spike", 1, 1e6),
        ("least", 1, YEAR),
        ("drop", 0, 1),
    ):
        value = getattr(health, key)
        if value and not least <= value <= most:
            raise places.error(("health", key), f"must be {least} to {most:g}, or 0 for none, not {value:g}")


def is_module_name(name: str) -> bool:
    """Whether Python can import something of this name."""
    return all(part.isidentifier() for part in name.split("."))


def profile_name(program: str, *, is_module: bool = False) -> str:
    """A valid name for the profile of a program: `train` for `src/train.py`, `train` for the module `project.train`."""
    name = program.rpartition("/")[2]
    stem = name.rpartition(".")[2] if is_module else name.rpartition(".")[0] or name
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-")[:64] or "run"


def _check_launch(launch: profile.Launch, places: Places) -> None:
    places.check_range(("launch", "lease"), launch.lease, 1, YEAR, " seconds")
    if launch.hold_for:
        places.check_range(("launch", "hold_for"), launch.hold_for, 1, YEAR, " seconds")
    if isinstance(launch.linger, float) and not 0 <= launch.linger <= profile.MAX_LINGER:
        reason = f'must be 0 to {profile.MAX_LINGER} seconds or "off", not {launch.linger:g}'
        raise places.error(("launch", "linger"), reason)
    modules = () if launch.preload == profile.AUTO_PRELOAD else launch.preload
    for name in modules:
        if not is_module_name(name):
            raise places.error(("launch", "preload"), f"{name!r} is not the name of a module")
    if len(modules) > MAX_PRELOAD:
        raise places.error(("launch", "preload"), f"must have at most {MAX_PRELOAD} modules, not {len(modules)}")
    if launch.max_restarts < 0:
        raise places.error(("launch", "max_restarts"), "must not be negative")
    if not launch.stop_ladder:
        hint = 'for example: [["SIGTERM", 10], ["SIGKILL", 5]]'
        raise places.error(("launch", "stop_ladder"), "must have a step", hint=hint)
    places.check_range(("launch", "stop_patience"), launch.stop_patience, 0, 86_400, " seconds")
    for name, seconds in launch.stop_ladder:
        if name not in SIGNALS:
            hint = suggestion(name.upper(), SIGNALS, f"one of {', '.join(SIGNALS)}", 0.5)
            raise places.error(("launch", "stop_ladder"), f"there is no signal {name!r} to stop with", hint=hint)
        if not 0 <= seconds <= 86_400:
            raise places.error(("launch", "stop_ladder"), f"{name} must wait 0 to 86400 seconds, not {seconds:g}")
    if launch.stop_ladder[-1][0] != "SIGKILL":
        reason = "must end with SIGKILL; otherwise a rank could outlive its run"
        raise places.error(("launch", "stop_ladder"), reason, hint='add ["SIGKILL", 5]')
    for key, text in (("workdir", launch.workdir), ("python", launch.python or ""), ("setup", launch.setup)):
        places.check_text(("launch", key), text)


def _check_backend(backend: profile.Backend, places: Places) -> None:
    places.check_range(("backend", "timeout"), backend.timeout, 1, YEAR, " seconds")
    for key, names in (("name", (backend.name,)), ("fallback", backend.fallback)):
        for name in names:
            try:
                backends_in(name)
            except ValueError as error:
                raise places.error(("backend", key), f"{name!r} {error}", hint=_BACKEND_HINT) from None
    if AUTO in backend.fallback:
        raise places.error(("backend", "fallback"), "auto can't be a fallback", hint='set backend.name = "auto"')
    if backend.name == AUTO and backend.fallback:
        hint = "leave it out: auto has its own fallback"
        raise places.error(("backend", "fallback"), "can't be combined with auto", hint=hint)
    if backend.rejoin == "gloo" and "mpi" not in (backend.name, *backend.fallback):
        raise places.error(("backend", "rejoin"), "is for the backend mpi", hint='leave it out, or set it to "off"')
    again = [name for name in backend.fallback if name == backend.name or backend.fallback.count(name) > 1]
    if again:
        raise places.error(("backend", "fallback"), f"{again[0]} would be tried twice")


def _check_layout(layout: profile.Layout, places: Places) -> None:
    given = [name for name in ("hostfile", "slurm", "pbs") if getattr(layout, name) is not None]
    if layout.nodes != "localhost":  # the default
        given.insert(0, "nodes")
    if len(given) > 1:
        hint = 'set at most one of: nodes = "gpu[01-04]", hostfile = "hosts.txt", slurm = "current", pbs = "current"'
        raise places.error(("layout",), f"takes its nodes from {' and '.join(given)}", hint=hint)
    ranks = layout.ranks_per_node
    if isinstance(ranks, int):
        places.check_range(("layout", "ranks_per_node"), ranks, 1, MAX_RANKS)
    try:
        parse_nodes(layout.nodes, ranks, dict.fromkeys(groups_of(layout.nodes), ()))
    except LayoutError as error:
        raise places.error(("layout", "nodes"), str(error), hint=error.hint) from None
    if layout.transport in ("slurm", "pbs") and getattr(layout, layout.transport) is None:
        other = " or to a job id" if layout.transport == "slurm" else ""
        hint = f'set layout.{layout.transport} to "current"{other}; without a job, nodes are reached over ssh'
        raise places.error(("layout", "transport"), f"is {layout.transport}, and the profile names no job", hint=hint)
    if layout.hostfile == "":
        raise places.error(("layout", "hostfile"), "is empty")
    if layout.job is not None:
        check_job(layout.job, places)
    elif isinstance(layout.slurm, int | str) and not is_slurm_job(layout.slurm):
        hint = '"current", a job id such as 1234, or a task of a job array such as "1234_5"'
        raise places.error(("layout", "slurm"), "is not a job", hint=hint)
    places.check_text(("layout", "hostfile"), layout.hostfile or "")
    places.check_text(("layout", "ssh_options"), *layout.ssh_options)
