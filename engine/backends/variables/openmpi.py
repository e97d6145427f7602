"""Open MPI: 4, whose mpirun is ORTE, and 5, whose mpirun is PRRTE (4.1.4 and 5.0.11, by `ompi_info`; PRRTE's source at 3.0 and newer).

PRRTE reads names of ORTE that begin with `orte_`, `oob_` and `plm_rsh_` as its own, so these still work under Open MPI 5.
"""

from __future__ import annotations

from itertools import permutations

from engine.backends.variables.base import MCA_SWITCH, WHOLE, Family, Gone, Takes, Variable, one_of

_LEVELS = Takes(
    words="a number from 0 to 100, or none, error, warn, info, debug",
    pattern=r"-?\d+|none|error|component|warn|info|trace|debug|max",
)


def _renamed(old: str, new: str, default: str, does: str, takes: Takes | None = None) -> tuple[Variable, Variable]:
    """A variable that is `OMPI_MCA_{old}` to Open MPI 4 and has another name since 5."""
    old = f"OMPI_MCA_{old}"
    return (
        Variable(old, default, does, takes=takes, until="4", instead=new),
        Variable(new, default, does, takes=takes, since="5", instead=old),
    )


OPENMPI = Family(
    title="Open MPI",
    reader="Open MPI",
    prefixes=("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"),
    backends=frozenset({"mpi"}),
    likeness=0.93,
    variables=(
        *(
            Variable(name, "0", f"Lets root start mpirun, together with {other}", since=since, sets="1 for root")
            for prefix, since in (("OMPI", ""), ("PRTE", "5"))
            for name, other in permutations((f"{prefix}_ALLOW_RUN_AS_ROOT", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"))
        ),
        Variable(
            "OMPI_MCA_btl_tcp_if_include",
            "all but lo",
            "Network interfaces or networks for connections between ranks: eth0, or 10.0.0.0/16; not together with btl_tcp_if_exclude",
            when="nodes have networks that do not reach other nodes, such as docker0",
            sets="on several nodes, the interface that leads to the first",
        ),
        Variable(
            "OMPI_MCA_btl_tcp_if_exclude",
            "127.0.0.1/8,sppp",
            "Network interfaces or networks that ranks do not use; name the loopback again",
        ),
        Variable("OMPI_MCA_btl_tcp_links", "1", "Connections between two ranks", takes=WHOLE),
        Variable(
            "OMPI_MCA_btl_tcp_eager_limit", "65536", "Bytes up to which a message is sent immediately", takes=WHOLE
        ),
        Variable(
            "OMPI_MCA_btl_tcp_port_min_v4",
            "1024",
            "First port that ranks listen on",
            when="a firewall opens only a range",
            takes=WHOLE,
        ),
        Variable(
            "OMPI_MCA_btl_tcp_port_range_v4",
            "64511",
            "Number of ports, from OMPI_MCA_btl_tcp_port_min_v4 on, that ranks listen on",
            takes=WHOLE,
        ),
        Variable(
            "OMPI_MCA_btl",
            "all",
            "Transports of bytes: self,vader,tcp with 4; self,sm,tcp with 5; ^tcp: all others",
        ),
        Variable("OMPI_MCA_pml", "best", "Transport of messages: ob1 or ucx", when="one of them fails: the other"),
        Variable("OMPI_MCA_mtl", "best", "Transport of networks that match messages themselves: ofi, psm2"),
        Variable("OMPI_MCA_osc", "best", "Transport of one-sided transfers"),
        Variable("OMPI_MCA_coll", "all", "Components for collectives: tuned, han, ucc, …; ^ucc: all others"),
        Variable(
            "OMPI_MCA_coll_ucc_enable",
            "0",
            "Collectives through UCC, if Open MPI was built with it",
            takes=MCA_SWITCH,
        ),
        Variable(
            "OMPI_MCA_coll_ucc_priority",
            "10",
            "Priority of UCC among the components for collectives; 100 is above all others",
            takes=WHOLE,
        ),
        Variable(
            "OMPI_MCA_coll_tuned_use_dynamic_rules",
            "false",
            "Lets variables such as OMPI_MCA_coll_tuned_allreduce_algorithm choose algorithms",
            takes=MCA_SWITCH,
        ),
        Variable(
            "OMPI_MCA_coll_tuned_allreduce_algorithm",
            "ignore",
            "Which algorithm an all-reduce uses, with OMPI_MCA_coll_tuned_use_dynamic_rules",
            takes=Takes(
                words="ignore, basic_linear, nonoverlapping, recursive_doubling, ring, segmented_ring, rabenseifner or 0 to 7",
                pattern="ignore|basic_linear|nonoverlapping|recursive_doubling|ring|segmented_ring|rabenseifner|allgather_reduce|[0-7]",
            ),
        ),
        Variable(
            "OMPI_MCA_mpi_yield_when_idle",
            "false",
            "A waiting rank yields its core",
            when="there are more ranks than cores",
            takes=MCA_SWITCH,
            sets="1, where a node has more ranks than cores",
        ),
        Variable(
            "OMPI_MCA_mpi_warn_on_fork",
            "true",
            "Warns when a rank forks, as a DataLoader's workers do",
            takes=MCA_SWITCH,
        ),
        Variable("OMPI_MCA_mpi_leave_pinned", "auto", "Keeps memory registered with the network", takes=MCA_SWITCH),
        Variable(
            "OMPI_MCA_mpi_show_mca_params",
            "none",
            "Prints settings of Open MPI at the start: all, default, file, enviro",
        ),
        Variable(
            "OMPI_MCA_btl_base_verbose",
            "0",
            "How much is logged about the choice of the byte transport (BTL)",
            takes=_LEVELS,
        ),
        Variable(
            "OMPI_MCA_pml_base_verbose",
            "0",
            "How much is logged about the choice of the message transport (PML)",
            takes=_LEVELS,
        ),
        Variable("OMPI_MCA_coll_base_verbose", "0", "How much the choice of collectives logs", takes=_LEVELS),
        Variable("OMPI_MCA_pml_ucx_tls", "InfiniBand and GPUs", "UCX transports for which UCX is used; any: always"),
        Variable("OMPI_MCA_pml_ucx_devices", "mlx*", "Devices for which UCX is used; any: always"),
        Variable(
            "OMPI_MCA_opal_warn_on_missing_libcuda",
            "true",
            "Warns if it was built with CUDA and CUDA is missing",
            takes=MCA_SWITCH,
        ),
        Variable(
            "OMPI_MCA_btl_vader_single_copy_mechanism",
            "cma",
            "How ranks of a node copy each other's memory",
            when="a container forbids it (Read -1, expected …, errno = 1): none",
            takes=one_of("none", "cma", "knem", "xpmem", "emulated", "1", "2", "3", "4"),
            until="4",
            instead="OMPI_MCA_smsc (^cma for none)",
        ),
        Variable(
            "OMPI_MCA_smsc",
            "best",
            "How ranks of a node copy each other's memory",
            when="a container forbids it: ^cma",
            since="5",
            instead="OMPI_MCA_btl_vader_single_copy_mechanism (none for ^cma)",
        ),
        *_renamed(
            "btl_vader_backing_directory",
            "OMPI_MCA_btl_sm_backing_directory",
            "/dev/shm",
            "Folder of the shared memory",
        ),
        Variable(
            "OMPI_MCA_btl_openib_allow_ib",
            "false",
            "InfiniBand without UCX",
            takes=MCA_SWITCH,
            until="4",
            instead="OMPI_MCA_pml (ucx)",
        ),
        *_renamed("oob_tcp_if_include", "PRTE_MCA_prte_if_include", "all", "Network interfaces of the daemons"),
        *_renamed(
            "oob_tcp_if_exclude", "PRTE_MCA_prte_if_exclude", "none", "Network interfaces that the daemons do not use"
        ),
        *_renamed(
            "plm_rsh_agent",
            "PRTE_MCA_plm_ssh_agent",
            "ssh : rsh",
            "The command that starts daemons on other nodes; rankdeck's agents start daemons",
        ),
        Variable(
            "OMPI_MCA_rmaps_base_oversubscribe",
            "false",
            "More ranks than cores; rankdeck always allows it",
            takes=MCA_SWITCH,
            until="4",
            instead="PRTE_MCA_rmaps_default_mapping_policy (:oversubscribe)",
        ),
        *_renamed(
            "rmaps_base_mapping_policy",
            "PRTE_MCA_rmaps_default_mapping_policy",
            "by slot",
            "How ranks are placed; rankdeck places them itself",
        ),
        *_renamed("orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "$TMPDIR", "Folder of the daemons' files"),
        *_renamed("plm_base_verbose", "PRTE_MCA_plm_base_verbose", "0", "How much the start of daemons logs", _LEVELS),
        Variable(
            "PMIX_MCA_gds",
            "best",
            "How ranks exchange their addresses: hash",
            when="PMIx fails with gds errors",
        ),
        Variable(
            "OMPI_MCA_mpi_ft_enable", "false", "Lets a job outlive a rank, with ULFM", takes=MCA_SWITCH, since="5"
        ),
    ),
    gone=(
        Gone("OMPI_MCA_timeout", "Open MPI has no such variable", "set backend.timeout = 600 (seconds)"),
        Gone("OMPI_MCA_btl_tcp_if", "Open MPI has no such variable", "set OMPI_MCA_btl_tcp_if_include"),
        Gone(
            "OMPI_MCA_mpi_paffinity_alone", "Open MPI has removed it", "leave it out: ranks are not bound to cores here"
        ),
        Gone("OMPI_MCA_btl_sm_use_knem", "Open MPI has removed it", "leave it out"),
    ),
    others="""
        OMPI_MCA_btl_tcp_port_min_v6 OMPI_MCA_btl_tcp_port_range_v6 OMPI_MCA_coll_tuned_reduce_algorithm
        OMPI_MCA_rmaps_base_no_oversubscribe OMPI_MCA_bml_base_verbose OMPI_MCA_fbtl_base_verbose
        OMPI_MCA_fcoll_base_verbose OMPI_MCA_mtl_base_verbose OMPI_MCA_rml_base_verbose
    """,
)
