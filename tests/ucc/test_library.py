"""How libucc is looked for, and what is said where it can't be used. No UCC is needed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from engine.backends import ucc
from engine.gate import LAUNCHED
from rankdeck.c10d import _collectives
from rankdeck.c10d._ucc import api as ucc_api
from rankdeck.c10d._ucc import group
from rankdeck.c10d._ucc import library as ucc_library
from rankdeck.c10d._ucc.collectives import reduction
from rankdeck.c10d._ucc.exchange import Exchange, MissingError
from rankdeck.c10d._ucc.library import NAME, candidates, explain, missing_components
from rankdeck.c10d._ucc.peers import PeerGoneError, Peers, name_process
from tests.support import ROOT, from_table, rows


def test_the_library_is_looked_for_where_the_user_says_then_in_the_environment_then_in_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert candidates({}, str(tmp_path)) == [NAME]
    (tmp_path / "lib").mkdir()
    own = tmp_path / "lib" / NAME
    own.touch()
    assert candidates({}, str(tmp_path)) == [str(own), NAME]
    hpcx = tmp_path / "hpcx" / "lib" / NAME
    assert candidates({"HPCX_UCC_DIR": str(tmp_path / "hpcx")}, str(tmp_path)) == [str(own), NAME]
    hpcx.parent.mkdir(parents=True)
    hpcx.touch()
    assert candidates({"HPCX_UCC_DIR": str(tmp_path / "hpcx")}, str(tmp_path)) == [str(own), NAME, str(hpcx)]
    monkeypatch.setattr(ucc_library, "HPCX", str(tmp_path / "hpcx"))
    assert candidates({}, str(tmp_path)) == [str(own), NAME, str(hpcx)]
    assert candidates({"RANKDECK_LIBUCC": "/opt/ucc/lib/libucc.so.1"}, str(tmp_path)) == ["/opt/ucc/lib/libucc.so.1"]


@from_table
def test_what_the_linker_says_becomes_a_hint(name: str, said: str, words: str) -> None:
    assert words in str(explain(name, said))


def test_debians_package_without_its_other_half_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "ucc").mkdir()
    for name in ("cl_basic", "tl_ucp", "mc_cpu", "ec_cpu"):
        (tmp_path / "ucc" / f"libucc_{name}.so.1").touch()
    assert missing_components(str(tmp_path / NAME)) == ["cl_basic", "tl_ucp", "mc_cpu", "ec_cpu"]
    for path in list((tmp_path / "ucc").iterdir()):
        path.with_suffix("").symlink_to(path)
    assert missing_components(str(tmp_path / NAME)) == []


def test_the_probe_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "rankdeck/c10d/_ucc/library.py")],
        capture_output=True, text=True, check=False, env={"RANKDECK_LIBUCC": str(tmp_path / NAME)},
    )  # fmt: skip
    fact, hint = done.stdout.splitlines()
    assert done.returncode == 1
    assert "UCC can't be loaded" in fact
    assert "libucc-dev" in hint


@pytest.mark.parametrize("version", [(1, 3, 0), (1, 4, 4), (2, 0, 0)])
def test_a_version_with_which_ranks_would_differ_or_that_nobody_has_tried_is_refused(
    version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucc_library, "_SETTINGS", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: name)
    monkeypatch.setattr(ucc_library, "_path_of", lambda functions: "/opt/libucc.so.1")
    monkeypatch.setattr(ucc_library, "missing_components", lambda path: [])
    monkeypatch.setattr(ucc_library, "_version_of", lambda functions: version)
    with pytest.raises(ucc_library.LibraryError, match=r"take 1\.5 or newer, below 2\.0"):
        ucc_library.load()


def test_the_structures_are_as_large_as_those_of_ucc() -> None:
    sizes = {
        ucc_api.LibParams: 40, ucc_api.Oob: 40, ucc_api.ContextParams: 80, ucc_api.TeamParams: 208,
        ucc_api.BufferInfo: 32, ucc_api.BufferInfoV: 40, ucc_api.CollArgs: 200,
    }  # fmt: skip
    assert {kind: ctypes.sizeof(kind) for kind in sizes} == sizes


def test_ranks_find_together_after_an_attempt_to_which_some_did_not_come() -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(MissingError) as given_up:
        Exchange(store, 0, 2, time.monotonic()).all_gather(b"before")
    assert given_up.value.ranks == [1]
    for _ in range(3):
        exchanges = [Exchange(store, rank, 2, time.monotonic() + 60) for rank in range(2)]
        with ThreadPoolExecutor() as pool:
            heard = list(pool.map(Exchange.all_gather, exchanges, [b"first", b"second"]))
        assert heard == [[b"first", b"second"]] * 2


class _InterruptedStore:
    """Somebody presses Ctrl-C whenever it is asked."""

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        return b"0"

    def set(self, key: str, value: str) -> None:
        raise KeyboardInterrupt

    def check(self, keys: list[str]) -> bool:
        raise KeyboardInterrupt


def test_an_interrupt_while_ucc_asks_the_store_is_an_error_to_it_and_kept_for_the_caller() -> None:
    callbacks = Exchange(_InterruptedStore(), 0, 1, time.monotonic() + 60).callbacks()
    all_gather, test, _ = callbacks._functions
    request, here, there = ctypes.c_void_p(), ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    assert (
        all_gather(ctypes.addressof(here), ctypes.addressof(there), 8, None, ctypes.pointer(request)) == ucc_api.ERROR
    )
    assert isinstance(callbacks.error, KeyboardInterrupt)
    callbacks.error, callbacks._under_way[7] = None, (ctypes.addressof(there), 8)
    assert test(7) == ucc_api.ERROR
    with pytest.raises(KeyboardInterrupt):
        callbacks.end()
    assert test(7) == ucc_api.ERROR
    assert callbacks.error is None


def test_a_rank_that_has_ended_before_anybody_looked_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    peers = Peers({0: name_process(), 1: f"{name_process().rpartition(' ')[0]} {ended.pid}"})
    with pytest.raises(PeerGoneError, match="the process of rank 1 has ended"):
        peers.check()


def test_halves_are_never_reduced_by_the_library() -> None:
    for dtype in _collectives.HALVES:
        assert reduction(ReduceOp(ReduceOp.SUM), dtype).native is None
    assert reduction(ReduceOp(ReduceOp.SUM), torch.bool).native == (ucc_api.BOR, ucc_api.UINT8)


def test_importing_the_backend_loads_no_library() -> None:
    code = (
        "import torch.distributed as dist, rankdeck.c10d.ucc as ucc; ucc.register(); "
        "print('libucc' in open('/proc/self/maps').read(), 'RANKDECK_UCC' in dist.Backend._plugins, "
        "'UCC' in dist.Backend._plugins, dist.get_default_backend_for_device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "True", str(not torch.distributed.is_ucc_available()), "gloo"]


def test_on_one_machine_nobody_else_is_talked_to() -> None:
    alone, several = (
        ucc.settings(one_machine=True, permit=LAUNCHED).env,
        ucc.settings(one_machine=False, permit=LAUNCHED).env,
    )
    assert (alone["UCX_TLS"], alone["UCX_NET_DEVICES"]) == ("self,sm,tcp", "lo")
    assert not several.keys() & {"UCX_TLS", "UCX_NET_DEVICES"}
    for env in (alone, several):
        assert (env["RANKDECK_BACKEND"], env["UCX_ERROR_SIGNALS"]) == ("ucc", "")


def test_the_check_asks_in_the_words_of_the_ranks() -> None:
    assert Path(ucc_library.__file__).read_text() == ucc.PROGRAM


@pytest.mark.parametrize(
    ("environment", "ports", "wanted"), rows("ucc/library", "ucx_is_told_the_interface_unless_a_faster_network_is_up")
)
def test_ucx_is_told_the_interface_unless_a_faster_network_is_up(
    environment: dict[str, str], ports: list[str], wanted: dict[str, str], tmp_path: Path
) -> None:
    for number, state in enumerate(ports):
        (tmp_path / f"{number}.state").write_text(state)
    assert ucc_library.network(environment, f"{tmp_path}/*.state") == wanted


def test_a_transfer_whose_peer_is_gone_is_looked_at_several_times_however_long_that_takes() -> None:
    """Its data may have arrived, and a busy machine may let this process look only once in a second."""

    class Waiting:
        source, cancel = 1, None

        def is_done(self) -> bool:
            return False

    class Gone:
        def check(self, rank: int | None) -> None:
            raise PeerGoneError("the process of rank 1 has ended")

    message: Any = group._Message(Waiting(), Gone(), 1)  # type: ignore[arg-type]
    assert not message.is_done()
    message._end -= 1000.0  # so much time has passed
    assert [message.is_done() for _ in range(group._ARRIVAL_LOOKS - 1)] == [False] * (group._ARRIVAL_LOOKS - 1)
    with pytest.raises(PeerGoneError):
        message.is_done()
