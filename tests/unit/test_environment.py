"""Environment variables: what is known of them agrees with what is installed, and only what is wrong is warned of."""

import importlib.util
import mmap
import os
import re
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.backends import BACKENDS, variables
from engine.backends.environment import environment_warnings, trouble_with
from engine.backends.variables import ALIASES, FAMILIES, GONE, VARIABLES, Family, Gone, Variable, families_of, family_of
from engine.core.plan.document.reading import parse_with_places, profile_from_data
from engine.core.plan.environment import EnvWarning
from engine.core.plan.layout import Slots
from engine.core.plan.mpirun import Implementation, Mpi
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan
from engine.core.plan.profile import Profile
from tests.support import PATIENCE, WHEEL, entries, from_table, rows, run_program

KNOWN = sorted({name for family in FAMILIES for name in family.names})

ORDINARY = """
    OMP_NUM_THREADS MKL_NUM_THREADS CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING TORCH_HOME TORCH_LOGS TORCHINDUCTOR_CACHE_DIR
    TORCH_EXTENSIONS_DIR TORCH_COMPILE_DEBUG PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PATH PYTHONPATH LD_LIBRARY_PATH
    HF_TOKEN HF_HOME WANDB_API_KEY HOME TMPDIR NVIDIA_VISIBLE_DEVICES KMP_AFFINITY MALLOC_ARENA_MAX TOKENIZERS_PARALLELISM
    TRITON_CACHE_DIR PMIX_MCA_gds OMPI_COMM_WORLD_RANK PMI_RANK FI_PROVIDER FI_EFA_USE_DEVICE_RDMA TORCH_MY_OWN_THING
    NCCL_OFI_RECOMMENDED NCCL_FASTRAK_NUM_FLOWS NCCL_GPUDIRECTTCPX_SOCKET_IFNAME NCCL_IBEXT_DISABLE
    OMPI_MCA_pml_monitoring_enable UCX_DC_MLX5_NUM_DCI UCX_CUDA_COPY_MAX_REG_RATIO MPIR_CVAR_IALLREDUCE_TREE_KVAL
""".split()
"""What people set with good reason, or what belongs to others."""


def mpi(implementation: Implementation = "openmpi", version: str = "4.1.4") -> Mpi:
    return Mpi(implementation=implementation, version=version, path="/usr/bin/mpirun", slots=2)


def planned(
    backend: str = "gloo", library: Mpi | None = None, *, nodes: str = "localhost", **sections: Any
) -> LaunchPlan:
    """A plan that no machine was asked for."""
    return _planned(backend, library, nodes=nodes, **sections)[1]


def _planned(backend: str, library: Mpi | None, *, nodes: str, **sections: Any) -> tuple[Profile, LaunchPlan]:
    data = {"schema": 1, "name": "p", "recipe": {"name": "gpt"}, "layout": {"nodes": nodes}, **sections}
    profile = profile_from_data(data, "p.toml")
    library = library or (mpi() if backend == "mpi" else None)
    settings = BackendSettings(name=backend, env={}, device="cpu", mpi=library)
    facts = (NodeFacts(name=nodes, cores=2, gpus=0, python="python3"),)
    return profile, build_plan(profile, (Slots(node=nodes, ranks=2),), facts, settings, workdir="/")


def told(name: str, value: str = "1", backend: str = "gloo", library: Mpi | None = None) -> str:
    """What is said of a variable; empty: nothing."""
    trouble = trouble_with(name, value, planned(backend, library))
    return f"{name} {trouble.problem}; {trouble.hint}" if trouble is not None else ""


# --- what is known ------------------------------------------------------------------------------------------------------


def test_no_name_is_known_twice():
    names = [name for family in FAMILIES for one in family.variables for name in (one.name, *one.aliases.split())]
    names += [one.name for family in FAMILIES for one in family.gone]
    assert len(names) == len(set(names))
    assert sum(len(family.names) for family in FAMILIES) == len(KNOWN)


@pytest.mark.parametrize("path", sorted(Path(variables.__file__).parent.glob("*.tsv")), ids=lambda path: path.stem)
def test_a_table_has_the_columns_of_its_rows(path: Path):
    row = {"families": variables._Library, "gone": Gone, "values": variables._Values}.get(path.stem, Variable)
    head, *rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert tuple(head.split("\t")) == row.__struct_fields__
    assert all(line == line.strip() and line for line in rows)
    assert rows
    assert row is not Variable or path.stem in {family.name for family in FAMILIES}
    assert row is not Gone or {line.split("\t")[0] for line in rows} <= {family.name for family in FAMILIES}


@pytest.mark.parametrize("cell", sorted({one.takes for _, one in VARIABLES.values() if one.takes}))
def test_values_are_words_or_a_kind_of_values(cell: str):
    takes = variables._takes(cell)
    assert re.compile(takes.pattern)
    assert "|" in cell or cell in variables._kinds()
    assert "|" not in takes.words


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_every_variable_is_described_in_one_plain_sentence(family: Family):
    for one in family.variables:
        assert re.fullmatch(r"[A-Z0-9^][^\n]{3,140}[^.\s]", one.does), one
        assert one.default, one
        assert (family_of(one.name), bool(one.fixed) and not one.sets) == (family, False)
        assert not one.instead or one.instead.partition(" ")[0] in VARIABLES
    for gone in family.gone:
        assert gone.why, gone
        assert gone.hint, gone
        for name in re.findall(r"\b[A-Z][A-Z0-9]+_[A-Za-z0-9_]+\b", gone.hint):
            assert name in KNOWN, f"{gone.name} is to be replaced by {name}, which is not known"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_variables_of_its_own_and_torchs(backend: str):
    families = families_of(backend)
    assert families[-1].title.startswith("what every rank is given")
    assert len(families) > 2


@pytest.mark.parametrize(("value", "allowed"), [("WARN", True), ("warn", True), ("WARNING", False), ("", False)])
def test_values_are_compared_whole(value: str, allowed: bool):
    assert variables._takes("WARN|INFO").allows(value) is allowed
    assert variables._takes("=WARN|INFO").allows(value) is (value == "WARN")


# --- what is installed --------------------------------------------------------------------------------------------------

OTHER_BUILDS = re.compile(r"GLOO_DEVICE_TRANSPORT_TCP_TLS_|TORCH_NCCL_|NCCL_|TORCH_DIST_NAN_CHECK|TORCH_DIST_USE_NCCL2")
"""Read by code that only builds with OpenSSL or CUDA have, or that came after torch 2.13."""


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def data_of(library: Path) -> bytes:
    """What a shared library of 64 bits loads besides machine code: its strings are there, and not its symbols."""
    loads_data, is_code = 2, 4
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        (table,), (count,) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<H", elf, 60)
        sections = [struct.unpack_from("<IIQQQQ", elf, table + 64 * index) for index in range(count)]
        return b"\0".join(
            elf[offset : offset + size]
            for _, kind, flags, _, offset, size in sections
            if kind == 1 and flags & loads_data and not flags & is_code
        )


@cache
def torch_words() -> frozenset[str]:
    """Every word in capitals of torch's libraries, sources and headers."""
    folder = torch_folder()
    sources = [*folder.rglob("*.py"), *(folder / "include" / "torch").rglob("*.h*")]
    words: set[str] = set()
    for text in (*map(data_of, (folder / "lib").glob("lib*.so")), *(path.read_bytes() for path in sources)):
        words.update(match.decode() for match in re.findall(rb"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", text))
    return frozenset(words)


OF_TORCH = [name for name in KNOWN if family_of(name) in families_of("gloo") and not OTHER_BUILDS.match(name)]


@pytest.mark.slow
def test_what_is_said_to_be_gloos_or_torchs_stands_in_torch():
    missing = set(OF_TORCH) - torch_words() - {"RANK", "GROUP_WORLD_SIZE", "OMP_NUM_THREADS"}
    assert missing == set()


@pytest.mark.slow
def test_what_a_cuda_build_reads_stands_in_the_headers_of_this_one():
    names = {one.name for family in FAMILIES if family.prefixes == ("TORCH_NCCL_",) for one in family.variables}
    elsewhere = {"TORCH_NCCL_USE_COMM_NONBLOCKING", "TORCH_NCCL_NONBLOCKING_TIMEOUT"}  # in sources of CUDA builds only
    assert names - torch_words() - elsewhere == set()


@pytest.mark.slow
def test_every_name_of_gloo_in_torch_is_known():
    """The base is complete there, and warns of all others."""
    data = b"\0".join(map(data_of, (torch_folder() / "lib").glob("libtorch_*.so")))
    names = {match.decode() for match in re.findall(rb"\0((?:TORCH_)?GLOO_[A-Z0-9_]+)(?=\0)", data)}
    assert "GLOO_SOCKET_IFNAME" in names
    assert names <= set(KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GONE if name not in ("HYDRA_BOOTSTRAP",)])
def test_what_is_said_to_do_nothing_stands_nowhere_in_torch_but_in_lists(name: str):
    tables = {"NCCL_CHECKS_DISABLE", "NCCL_IB_CUDA_SUPPORT", "NCCL_LL_THRESHOLD", "NCCL_RINGS", "NCCL_SINGLE_RING_THRESHOLD",
              "NCCL_TREE_THRESHOLD"}  # fmt: skip  # `torch.nn.parallel.distributed` prints these where they are set
    assert name not in torch_words() or name in tables


@cache
def mca_names(ompi_info: str) -> frozenset[str]:
    done = run_program([ompi_info, "--all", "--parsable"], check=True)
    return frozenset(f"OMPI_MCA_{name}" for name in re.findall(r":param:(\w+):", done.stdout))


@pytest.fixture(params=["4", "5"])
def installed(request: pytest.FixtureRequest) -> tuple[str, frozenset[str]]:
    """A version of Open MPI and the names that it tells."""
    path = shutil.which("ompi_info") if request.param == "4" else os.path.join(os.path.dirname(WHEEL), "ompi_info")
    said = (
        subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        if path and os.path.exists(path)
        else None
    )
    if path is None or said is None or f"v{request.param}." not in said.stdout:
        pytest.skip(f"there is no Open MPI {request.param}")
    return request.param, mca_names(path)


NOT_EVERYWHERE = {"OMPI_MCA_coll_ucc_enable", "OMPI_MCA_coll_ucc_priority"}  # only where Open MPI was built with UCC


def test_open_mpi_has_what_is_said_to_be_its_own(installed: tuple[str, frozenset[str]]):
    version, names = installed
    wanted = {
        name
        for name, (_, one) in VARIABLES.items()
        if name.startswith("OMPI_MCA_")
        and (not one.since or one.since <= version)
        and (not one.until or version <= one.until)
    }
    assert wanted - names - NOT_EVERYWHERE == set()


def test_open_mpi_does_not_have_what_is_said_to_do_nothing(installed: tuple[str, frozenset[str]]):
    assert not installed[1] & set(GONE)


@pytest.mark.slow
def test_no_setting_of_open_mpi_is_taken_for_a_misspelt_one(installed: tuple[str, frozenset[str]]):
    version, names = installed
    library = mpi(version=f"{version}.0.0")
    assert len(names) > 300
    assert {name for name in names if "no such variable" in told(name, "", "mpi", library)} == set()


def test_no_variable_of_mpich_is_taken_for_a_misspelt_one():
    folders = [Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu")]
    library = next((path for folder in folders if (path := folder / "libmpich.so.12").exists()), None)
    if library is None:
        pytest.skip("there is no MPICH")
    names = {match.decode() for match in re.findall(rb"\0(MPIR_CVAR_[A-Z0-9_]+)\0", library.read_bytes())}
    assert len(names) > 100
    assert {name for name in names if "no such variable" in told(name, "", "mpi", mpi("mpich", "4.0.2"))} == set()
    described = {name for name in KNOWN if name.startswith("MPIR_CVAR_")}
    assert described - names <= {"MPIR_CVAR_CH4_NUM_VNIS"}


# --- what is said -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(GONE))
def test_a_variable_that_nothing_reads_is_told_with_what_does_what_was_meant(name: str, backend: str):
    gone = GONE[name][1]
    assert told(name, backend=backend) == f"{name} does nothing: {gone.why}; {gone.hint}"


def test_the_best_known_of_them_is_told_in_a_friendly_sentence():
    said = "NCCL_TIMEOUT does nothing: NCCL has no such variable; set backend.timeout = 600 (seconds)"
    assert told("NCCL_TIMEOUT", "1800") == said


@from_table
def test_a_misspelt_name_is_told_with_the_nearest(backend: str, wrong: str, right: str):
    said = told(wrong, backend=backend)
    assert said == "" if not right else said.endswith(f"has no such variable; did you mean {right}?"), said


def test_a_name_that_gloo_can_not_know_is_told_even_where_none_is_near():
    assert (
        told("GLOO_XYZ")
        == "GLOO_XYZ does nothing: gloo has no such variable; rankdeck env gloo lists the known variables"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_ordinary_variables_are_no_matter(backend: str):
    said = {name: told(name, "x", backend) for name in ORDINARY}
    assert {name for name in ORDINARY if "no such variable" in said[name]} == set()
    assert {name for name in ORDINARY if family_of(name) is None and said[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "library"),
    [
        *rows("unit/environment", "a_variable_that_exists_is_never_taken_for_one_that_does_not"),
        ("mpi", mpi()),
        ("mpi", mpi(version="5.0.11")),
        ("mpi", mpi("mpich", "4.0.2")),
    ],
)
def test_a_variable_that_exists_is_never_taken_for_one_that_does_not(backend: str, library: Mpi | None):
    assert len(KNOWN) > 500
    assert {name for name in KNOWN if "no such variable" in told(name, "", backend, library)} == set()


@from_table
def test_a_value_that_is_not_understood_is_told_with_those_that_are(name: str, value: str, ok: bool):
    said = told(name, value, "nccl")
    assert said == "" if ok else f"is {value!r}, which " in said, said
    assert ok or "it takes " in said


@pytest.mark.parametrize(
    ("backend", "name", "library", "said"),
    [
        *rows("unit/environment", "a_variable_of_another_backend_has_no_effect"),
        (
            "mpi",
            "OMPI_MCA_pml",
            mpi("mpich", "4.0.2"),
            "has no effect with MPICH; leave it out: only Open MPI reads it",
        ),
        ("mpi", "HYDRA_DEBUG", mpi(), "has no effect with Open MPI; leave it out: only MPICH reads it"),
        ("mpi", "UCX_TLS", mpi(), ""),
    ],
)
def test_a_variable_of_another_backend_has_no_effect(backend: str, name: str, library: Mpi | None, said: str):
    assert told(name, "1", backend, library) == (f"{name} {said}" if said else "")


def test_a_script_of_ones_own_may_have_a_group_of_its_own():
    with_script = planned("gloo", None, recipe={"script": "train.py"})
    trouble = trouble_with("NCCL_DEBUG", "INFO", with_script)
    assert trouble is not None
    assert trouble.hint == "leave it out, unless the script itself creates an nccl group"


@from_table
def test_a_name_of_the_other_open_mpi_is_told_with_its_name_here(name: str, version: str, hint: str):
    said = told(name, "", "mpi", mpi(version=version))
    other = "4" if version[0] == "5" else "5"
    wanted = f"{name} is a name of Open MPI {other}, and /usr/bin/mpirun is of {version}; {hint}" if hint else ""
    assert said == wanted


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_an_old_name_that_still_works_is_told_with_the_new_one(old: str):
    family, new = ALIASES[old]
    library = mpi("mpich", "4.0.2") if "mpi" in family.backends else None
    said = told(old, "1", "mpi" if library else "nccl", library)
    assert said.startswith(f"{old} is an old name that {family.reader} still reads; write {new.name}")


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"])
def test_what_rankdeck_gives_every_rank_can_not_be_set(name: str):
    assert told(name) == f"{name} does nothing: rankdeck sets it for every rank; leave it out"


# --- where it stands ----------------------------------------------------------------------------------------------------

TEXT = entries("unit/environment", "text")


def of_text(inherited: dict[str, str], *overrides: str) -> list[EnvWarning]:
    profile, places = parse_with_places(TEXT, file="p.toml", overrides=overrides)
    return list(environment_warnings(profile, planned("gloo", None), inherited, places))


def test_a_warning_says_the_place_what_is_wrong_and_what_to_do():
    assert [one.line for one in of_text({})] == [
        "p.toml:6: backend.env.NCCL_TIMEOUT does nothing: NCCL has no such variable; set backend.timeout = 600 (seconds)",
        "p.toml:9: env.GLOO_LOG_LEVEL is 'debug', which gloo does not understand; it takes DEBUG, INFO, WARN or ERROR",
    ]


def test_an_override_is_told_as_one():
    assert of_text({}, "env.GLOO_TIMEOUT=3")[-1].fact.startswith("--set: env.GLOO_TIMEOUT does nothing")


def test_bytes_of_no_encoding_and_long_values_are_no_reason_to_fail():
    profile, decided = _planned("gloo", None, nodes="localhost")
    inherited = {"GLOO_\udcff": "1", "GLOO_LOG_LEVEL": "\udcff" + "x" * 1000}
    (found,) = environment_warnings(profile, decided, inherited)
    assert found.name == "GLOO_LOG_LEVEL"
    assert len(found.line) < 300
    assert msgspec.json.encode(found)


@from_table
def test_of_the_users_own_environment_only_what_is_meant_for_the_backend_is_looked_at(
    name: str, value: str, warned: bool
):
    profile, decided = _planned("gloo", None, nodes="localhost")
    found = environment_warnings(profile, decided, {name: value})
    assert [(one.place, one.key) for one in found] == ([("your environment", name)] if warned else [])
    profile, remote = _planned("gloo", None, nodes="gpu01")
    assert environment_warnings(profile, remote, {name: value}) == ()
    profile, overridden = _planned("gloo", None, nodes="localhost", env={name: "x"})
    assert all(one.table for one in environment_warnings(profile, overridden, {name: value}))
