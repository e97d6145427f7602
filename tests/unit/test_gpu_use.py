"""What a node says of its GPUs, which may be anything."""

import pytest

from engine.core.metrics.resources import MAX_BYTES, GpuUse, read_use


def test_three_numbers_are_a_gpu():
    assert read_use([97, 61, 80]) == GpuUse(utilisation=97, memory=61, memory_total=80)


@pytest.mark.parametrize("odd", [None, -1, 101, 1.5, "97", True, [], {}, float("nan")])
def test_what_can_not_be_is_unknown(odd: object):
    assert read_use([odd, 61, 80]) == GpuUse(utilisation=None, memory=61, memory_total=80)


@pytest.mark.parametrize("odd", [None, -1, MAX_BYTES + 1, 1.5, "61", False, 10**400])
def test_so_is_memory_that_can_not_be(odd: object):
    assert read_use([97, odd, odd]) == GpuUse(utilisation=97, memory=None, memory_total=None)


def test_a_gpu_of_which_nothing_is_known_is_none():
    assert read_use([None, None, None]) is None
    assert read_use([None, None, 80]) is None


@pytest.mark.parametrize("said", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_what_is_not_three_values_is_refused(said: list[object]):
    with pytest.raises(ValueError, match="values to unpack"):
        read_use(said)
