"""One profile's plans with different backends, from what its nodes have; `engine.planning.make` chooses among them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from engine.backends import asks_nodes, check_node, check_plan, judge, program_of, settings_of
from engine.core.errors import CheckError
from engine.core.plan.layout import LOCAL_NAMES
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan, with_backend
from engine.core.plan.profile import Profile, Transport
from engine.core.words import count
from engine.gate import Permit
from engine.launchers import local
from engine.planning import recipes
from engine.planning.nodes import Nodes, nodes_of
from engine.planning.pythons.interpreters import interpreter_of
from engine.planning.pythons.training_python import training_python
from engine.planning.recipes import check_backend, check_ranks


class Draft:
    """A profile's plans with different backends. `profile`: with absolute paths. Raises CheckError: the profile calls this machine by a wrong name,
    or its nodes can't be determined."""

    def __init__(self, profile: Profile, permit: Permit, nodes: Nodes | None = None) -> None:
        self._permit = permit
        self._slots, self._slurm_job = nodes or nodes_of(profile.layout, permit)
        layout = profile.layout
        if layout.transport is None:
            transport: Transport | None = layout.system
            if transport is None and self._slurm_job and shutil.which("srun"):
                transport = "slurm"
            elif transport is None and layout.pbs and shutil.which("pbs_tmrsh"):
                transport = "pbs"
            profile = replace(profile, layout=replace(layout, transport=transport))
        self._profile = profile
        self._workdir = profile.launch.workdir
        self._python = training_python(profile, self._workdir, permit)
        self.is_one_machine = len(self._slots) == 1
        self._known: dict[str, NodeFacts] = {}
        """Facts by node name, about this machine and the nodes that were asked."""
        for node in self.planned(BackendSettings(name="", env={}, device="cpu"), asked=False).nodes:
            if node.transport == "local":
                if node.name not in LOCAL_NAMES:
                    hint = 'leave layout.transport out, or set it to "ssh", to reach it'
                    raise CheckError(f"{node.name} is not this machine", hint=hint)
                self._known[node.name] = replace(local.facts(node.name), python=self._python)
        self._here = frozenset(self._known)

    @property
    def is_counted(self) -> bool:
        """Whether the number of ranks is known before other nodes are asked."""
        return all(slot.ranks is not None or slot.node in self._here for slot in self._slots)

    @property
    def is_here(self) -> bool:
        """Whether ranks run on this machine."""
        return bool(self._here)

    def settings(self, backend: str) -> BackendSettings:
        """The settings that a run with a backend needs. Raises CheckError if this machine lacks it, or the recipe can't use it."""
        check_backend(self._profile, backend)
        rejoin = self._profile.backend.rejoin
        return settings_of(backend, rejoin, one_machine=self.is_one_machine, permit=self._permit)

    def planned(self, settings: BackendSettings, *, asked: bool) -> LaunchPlan:
        """The plan if the run uses a backend with these settings. `asked`: asks nodes what they have, if the plan depends on it. Raises CheckError: a
        node can't be asked."""
        if asked:
            self._ask(self._planned(settings))
        return self._planned(settings)

    def _planned(self, settings: BackendSettings) -> LaunchPlan:
        unknown = (NodeFacts(name=slot.node, cores=0, gpus=0, python=self._python) for slot in self._slots)
        facts = tuple(self._known.get(fact.name, fact) for fact in unknown)
        plan = build_plan(self._profile, self._slots, facts, settings, workdir=self._workdir, slurm_job=self._slurm_job)
        if plan.program.kind == "recipe":
            return replace(plan, program=replace(plan.program, torch=recipes.recipe(plan.program.target).torch))
        is_script = plan.program.kind == "script" and not plan.launch.wrap
        words = interpreter_of(Path(plan.program.target)) if is_script else None
        if words is None:
            return plan
        program, launch = replace(plan.program, interpreter=words), replace(plan.launch, warm=False)
        return replace(plan, program=program, launch=launch)

    def _ask(self, draft: LaunchPlan) -> None:
        """Asks the nodes on whose facts the plan depends. This machine is not asked about torch if it has no GPU."""
        with_torch, program = asks_nodes(draft.backend.name), program_of(draft.backend.name)
        nodes, needed = [], set()
        for node, slot in zip(draft.nodes, self._slots, strict=True):
            is_here = node.name in self._here
            wants_torch = with_torch and not (is_here and not self._known[node.name].gpus)
            if wants_torch or (not is_here and slot.ranks is None):
                needed.add(node.name)
            if program or node.name in needed:
                nodes.append(node)
        if nodes:
            from engine.planning.check import facts_of

            facts = facts_of(draft, nodes, self._permit, needed=needed, with_torch=with_torch, program=program)
            self._known |= {fact.name: fact for fact in facts}

    def check(self, plan: LaunchPlan) -> None:
        """Raises CheckError if the backend of a plan can't run on its nodes, which were asked before, or are too few ranks for its recipe."""
        check_ranks(plan)
        for node in plan.nodes:
            if node.name in self._known:
                check_node(plan.backend.name, len(node.ranks), self._known[node.name])
        check_plan(plan)
        for name in (node.name for node in plan.nodes if node.name in self._known):
            try:
                if (said := self._known[name].output) is not None:
                    judge(said, plan)
            except CheckError as error:
                from engine.planning.check import doubt

                doubt(name)
                raise error if name in self._here else CheckError(f"{name}: {error.message}", hint=error.hint) from None

    def gpu_words(self, plan: LaunchPlan) -> str:
        """The GPUs that the ranks of a plan compute on, in words; empty: none."""
        if plan.backend.device != "cuda":
            return ""
        gpus = sum(self._known[node.name].gpus for node in plan.nodes)
        ranks = f"{count(plan.world_size, 'rank')}, each with its own"
        return f"{count(gpus, 'GPU')}: {'one rank for each' if gpus == plan.world_size else ranks}"

    def that_can_run(
        self, names: Sequence[str], plan: LaunchPlan, refused: list[tuple[str, CheckError]]
    ) -> tuple[BackendSettings, ...]:
        """The fallback backends that can run with the same ranks on the same nodes; the others are added to `refused`."""
        found: list[BackendSettings] = []
        for name in names:
            try:
                settings = self.settings(name)
                self.planned(settings, asked=True)
                self.check(with_backend(replace(plan, fallback=(settings,)), name))
            except CheckError as error:
                refused.append((name, error))
                continue
            found.append(settings)
        return tuple(found)
