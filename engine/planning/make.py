"""Makes a plan from a profile: chooses among its drafts with each backend, and refuses plans that can't run."""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from engine.backends import AUTO_SUMMARY, AUTOMATIC, BACKENDS
from engine.core.catalogue import BackendInfo
from engine.core.errors import CheckError, NotTrustedError
from engine.core.plan.batch import submission_of
from engine.core.plan.document.checks import check_choices
from engine.core.plan.document.places import Places
from engine.core.plan.document.site import Site, check_ranks_of_nodes, limited
from engine.core.plan.environment import AUTO, INHERITED, INTERFACE_NAMES, EnvWarning, backends_in, is_meant
from engine.core.plan.layout import Slots
from engine.core.plan.plan import BackendSettings, LaunchPlan
from engine.core.plan.profile import MAX_LINGER, PbsJob, Profile, SlurmJob
from engine.core.plan.standby import linger_seconds
from engine.gate import NOT_LOOKED_UP, Permit, which
from engine.installed import COMMAND
from engine.node.limits import shares
from engine.node.login import in_job
from engine.node.probe.allowed import cpu_words
from engine.planning.draft import Draft
from engine.planning.nodes import Nodes
from engine.planning.profile_paths import with_absolute_paths
from engine.planning.recipes import check_arguments, check_ranks, choices
from engine.planning.site import read_site
from engine.runs.imports import with_known_imports

HOLD_IN_JOB = 900.0  # seconds for which a run in a job holds where the profile does not say it

LINGER_VARIABLE = "RANKDECK_LINGER"  # environment variable that is used where the profile does not set `launch.linger`


def make_plan(
    profile: Profile, permit: Permit, *, checked: bool = True, places: Places | None = None, nodes: Nodes | None = None
) -> LaunchPlan:
    """The plan of a profile on its nodes, relative to the current directory; as far as reading files goes, if nothing may start for it.

    Asks other nodes only if their number of ranks or the choice of the backend depends on the answer. Checks files only on this
    machine, if ranks run here; `engine.planning.check` checks the others. If the profile allows several backends, the plan uses the first
    that can run.

    Args:
        checked: False checks nothing, and asks nodes only to choose among backends; a node that has to count its own ranks then
            gets one rank.
        places: where the keys of the profile are in its file, for warnings; None: unknown.
        nodes: what to use instead of `nodes_of` the layout.

    Raises:
        ProfileError: the profile names an unknown backend or recipe, or the recipe refuses its arguments.
        CheckError: a file, an interpreter or a device is missing, or a node can't be asked.
    """
    site = read_site()
    _, changed = limited(profile, *site)
    profile, _ = limited(_with_hold(profile), *site)
    check_choices(profile, choices(), "profile")
    check_arguments(profile, places or Places("profile", {}))
    try:
        plan = _first_that_runs(profile, Draft(with_absolute_paths(profile), permit, nodes), checked=checked)
        plan = replace(plan, is_looked_up=permit.may_start)
    except NotTrustedError:
        plan = _not_looked_up(profile, permit)
    check_ranks_of_nodes(plan.nodes, *site)
    plan = _with_cpus(plan, checked=checked)
    from engine.backends.environment import environment_warnings  # its hundreds of variables would slow --help down

    plan, wrong = _with_own_interface(with_known_imports(plan))
    warnings = environment_warnings(profile, plan, os.environ, places)
    variable = os.environ.get(LINGER_VARIABLE)
    try:
        most = site.site.limits.get("launch", {}).get("linger", MAX_LINGER)
        linger = linger_seconds(profile.launch.linger, variable, in_job=in_job())
        linger = min(linger, linger_seconds(most, None, in_job=False))
    except ValueError:
        hint = "set it to a number of seconds up to 86400, or to off"
        raise CheckError(f"{LINGER_VARIABLE} is {variable!r}", hint=hint) from None
    login = _login_warnings(plan, site.site, checked=checked)
    return replace(plan, warnings=(*login, *changed, *wrong, *warnings), linger=linger, message=site.site.message)


def _with_hold(profile: Profile) -> Profile:
    """The profile with the time for which its run holds: nobody else can use the nodes of a job meanwhile."""
    if profile.launch.hold_for is not None:
        return profile
    is_job = profile.layout.slurm is not None or profile.layout.pbs is not None or in_job()
    return replace(profile, launch=replace(profile.launch, hold_for=HOLD_IN_JOB if is_job else 0.0))


def _with_own_interface(plan: LaunchPlan) -> tuple[LaunchPlan, tuple[EnvWarning, ...]]:
    """The plan of ranks on this machine alone with its loopback interface, where the environment names an interface that is not here.

    On a login node or in an image, a site's module may name an interface that only compute nodes have.
    """
    if [node.transport for node in plan.nodes] != ["local"]:
        return plan, ()
    here, found = [name for _, name in socket.if_nameindex()], []
    for backend in backends_in(plan.backend.name):
        variable = INTERFACE_NAMES.get(backend, "")
        value = os.environ.get(variable, "")
        is_here = any(is_meant(name, value, prefixes=backend == "nccl") for name in here)
        if value and variable not in plan.env and not is_here:
            problem = f"is {value!r}, and this machine has no such interface; its ranks use lo"
            found.append(EnvWarning(place=INHERITED, table="", name=variable, problem=problem, hint="unset it here"))
            plan = replace(plan, env={**plan.env, variable: "lo"})
    return plan, tuple(found)


def _login_warnings(plan: LaunchPlan, site: Site, *, checked: bool) -> tuple[EnvWarning, ...]:
    """A warning about ranks on a login node of Slurm. Raises CheckError: the site does not allow them."""
    policy = site.login_nodes
    is_here = plan.submission is None and any(node.transport == "local" for node in plan.nodes)
    if policy == "allow" or not is_here or in_job() or which("sbatch") is None:
        return ()
    from engine.planning.batch.slurm_conf import is_login_node  # not needed on other machines

    if not is_login_node():
        return ()
    host, fact = socket.gethostname(), "is a login node of Slurm, and ranks would run on it"
    hint = "submit a job: rankdeck run --slurm, or [layout.slurm] in the profile"
    if policy == "refuse" and checked:
        raise CheckError(f"{host} {fact}, which this site does not allow", hint=hint)
    return (EnvWarning(place="", table="", name=host, problem=fact, hint=hint),)


def _with_cpus(plan: LaunchPlan, *, checked: bool) -> LaunchPlan:
    """The plan with the CPUs of ranks on this machine; others know theirs when they are asked."""
    if plan.layout.bind == "none":
        return plan
    environment = {**os.environ, **plan.env} if plan.backend.device == "cuda" else None
    nodes = list(plan.nodes)
    for number, node in enumerate(nodes):
        try:
            if node.transport == "local":
                cpus = map(cpu_words, shares(plan.layout.bind, len(node.ranks), environment))
                nodes[number] = replace(node, cpus=tuple(cpus))
        except ValueError as error:
            if checked:
                hint = "start fewer ranks, or set layout.bind to numa or none"
                raise CheckError(f"layout.bind is {plan.layout.bind}, and there are {error}", hint=hint) from None
    return replace(plan, nodes=tuple(nodes))


def _first_that_runs(profile: Profile, draft: Draft, *, checked: bool) -> LaunchPlan:
    """The plan on the first backend that can run."""
    if profile.layout.job is not None:
        return _to_submit(profile, profile.layout.job, draft, checked=checked)
    wanted = AUTOMATIC if profile.backend.name == AUTO else (profile.backend.name, *profile.backend.fallback)
    if not checked and len(wanted) == 1:
        plan = draft.planned(draft.settings(wanted[0]), asked=False)
        if draft.is_counted:
            check_ranks(plan)
        return plan
    refused: list[tuple[str, CheckError]] = []
    for number, name in enumerate(wanted):
        try:
            settings = draft.settings(name)
        except CheckError as error:
            refused.append((name, error))
            continue
        try:
            plan = draft.planned(settings, asked=True)
        except CheckError:
            if checked:
                raise
            return draft.planned(settings, asked=False)  # `rankdeck check` will report it
        try:
            draft.check(plan)
        except CheckError as error:
            refused.append((name, error))
            continue
        if checked and draft.is_here:
            _check_this_machine(plan)
        is_auto = profile.backend.name == AUTO
        fallback = draft.that_can_run(() if is_auto else wanted[number + 1 :], plan, refused)
        return replace(plan, backend_note=_note(profile, refused), backend_is_auto=is_auto, fallback=fallback)
    if len(refused) == 1:
        raise refused[0][1]
    whole = "; ".join(f"{name}: {error.message}" for name, error in refused)
    hint = refused[0][1].hint  # the user prefers the first
    raise CheckError(f"no backend of the profile can run: {whole}", hint=hint)


def _not_looked_up(profile: Profile, permit: Permit) -> LaunchPlan:
    """The plan on the first backend that the profile allows. Facts that need a program are left open: nodes, ranks of nodes, the MPI."""
    name = AUTOMATIC[-1] if profile.backend.name == AUTO else profile.backend.name
    layout, absolute = profile.layout, with_absolute_paths(profile)
    try:
        draft = Draft(absolute, permit)
    except NotTrustedError:  # of Slurm, or of ClusterShell
        ranks = None if layout.ranks_per_node == "auto" else layout.ranks_per_node
        draft = Draft(absolute, permit, Nodes((Slots(node=layout.words, ranks=ranks),)))
    try:
        settings = draft.settings(name)
    except NotTrustedError:
        settings = BackendSettings(name=name, env={}, device="cpu")
    plan = draft.planned(settings, asked=False)
    if layout.job is not None:
        plan = _with_submission(plan, layout.job)
    return replace(plan, is_looked_up=False)


def _to_submit(profile: Profile, job: SlurmJob | PbsJob, draft: Draft, *, checked: bool) -> LaunchPlan:
    """The plan of a job. The job itself makes another on its nodes, which are not known yet."""
    is_auto = profile.backend.name == AUTO
    plan = draft.planned(draft.settings(AUTOMATIC[-1] if is_auto else profile.backend.name), asked=False)
    check_ranks(plan)
    if checked:
        _check_this_machine(plan, for_job=True)
    plan = _with_submission(plan, job)
    if not is_auto:
        return plan
    note = "auto: chosen on the nodes of the job, when it starts"
    return replace(plan, backend=replace(plan.backend, name=AUTO), backend_note=note, backend_is_auto=True)


def _with_submission(plan: LaunchPlan, job: SlurmJob | PbsJob) -> LaunchPlan:
    command = [sys.executable, "-P", str(COMMAND), "in-job"]
    ranks = len(plan.nodes[0].ranks)
    return replace(plan, submission=submission_of(job, ranks, name=plan.name, command=command))


def known_backends() -> list[BackendInfo]:
    """The values of `backend.name`, with a summary of each."""
    own = [BackendInfo(name=name, summary=backend.summary) for name, backend in BACKENDS.items()]
    return [*own, BackendInfo(name=AUTO, summary=AUTO_SUMMARY)]


def available_backends(profile: Profile, permit: Permit) -> list[BackendInfo]:
    """The values of `backend.name`, and why some can't run on a profile's nodes. `profile`: gives the nodes and the recipe; its own backend
    does not matter. Raises CheckError: the nodes of the profile can't be determined."""
    infos = {info.name: info for info in known_backends()}
    try:
        draft = Draft(with_absolute_paths(profile), permit)
    except NotTrustedError as error:
        return [replace(info, found=error.message) for info in infos.values()]
    unknown = False
    for name in BACKENDS:
        try:
            settings = draft.settings(name)
            plan = draft.planned(settings, asked=True)
            draft.check(plan)
        except NotTrustedError as error:
            infos[name], unknown = replace(infos[name], found=error.message), unknown or name in AUTOMATIC
        except CheckError as error:
            infos[name] = replace(infos[name], trouble=error.message, hint=error.hint or "")
        else:
            infos[name] = replace(infos[name], found=settings.found or draft.gpu_words(plan))
    if unknown:
        return [*(info for info in infos.values() if info.name != AUTO), replace(infos[AUTO], found=NOT_LOOKED_UP)]
    chosen = next((name for name in AUTOMATIC if not infos[name].trouble), None)
    last = infos[AUTOMATIC[-1]]
    why = {"found": f"here: {chosen}"} if chosen else {"trouble": last.trouble, "hint": last.hint}
    infos[AUTO] = replace(infos[AUTO], **why)
    return list(infos.values())


def _note(profile: Profile, refused: Sequence[tuple[str, CheckError]]) -> str:
    """Why the plan uses a backend that the profile does not name first, and which fallbacks can't run."""
    if profile.backend.name == AUTO and not refused:
        return "auto: every node has a GPU for each rank"
    why = "; ".join(f"{name} can't run: {error.message}" for name, error in refused)
    return f"auto: {why}" if profile.backend.name == AUTO else why


def _check_this_machine(plan: LaunchPlan, *, for_job: bool = False) -> None:
    """Raises CheckError if something is missing that every rank needs. `for_job`: they run elsewhere, where other programs may be."""
    if not os.path.isdir(plan.workdir):
        hint = "set launch.workdir to a folder that exists"
        raise CheckError(f"the working directory {plan.workdir} does not exist", hint=hint)
    script = Path(plan.program.target)
    if plan.launch.wrap:  # the script, the Python and rank.wrap are inside, where only the check of a node sees them
        if not for_job and shutil.which(plan.launch.wrap[0]) is None:
            raise CheckError(f"there is no program {plan.launch.wrap[0]!r}", hint="correct launch.wrap, or install it")
        return
    if plan.program.kind == "script" and not script.is_file():
        hint = "recipe.script is relative to the directory you start rankdeck in"
        raise CheckError(f"the script {script} does not exist", hint=hint)
    if plan.program.kind == "script" and not os.access(script, os.R_OK):
        raise CheckError(f"the script {script} can't be read", hint=f"chmod u+r {script.name}")
    if plan.rank.wrap and not for_job and shutil.which(plan.rank.wrap[0]) is None:
        raise CheckError(f"there is no program {plan.rank.wrap[0]!r}", hint="correct rank.wrap, or install it")
    if shutil.which(plan.python) is None:
        raise CheckError(f"there is no Python {plan.python!r}", hint="set launch.python to one that has torch")
