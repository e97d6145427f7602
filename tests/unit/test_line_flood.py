"""A flood of like lines loses nothing that a curve shows."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.metrics.lines.flood import EPOCH, MIN_SIZE, thin

SHAPES = [
    "step {step} loss={loss}",
    "[{step}/90000] loss: {loss}, lr 0.1, 12:00:00 - and a fine text",
    "{loss} loss, step {step}, e 1e-5",
    "2026-01-02 epoch {step} loss {loss} +-",
]


NUMBER = rb"([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))"


def loss_of(line: bytes) -> re.Match[bytes] | None:
    return re.search(rb"loss[=: ]+" + NUMBER, line) or re.search(NUMBER + rb" loss", line)


def losses(line: bytes) -> list[tuple[str, int]]:
    found = loss_of(line)
    return [("loss", found.start(1))] if found else []


def flood(shape: str, values: list[float], form: str) -> list[bytes]:
    lines = [
        shape.format(step=number, loss=format(value, form)).encode() + b"\n" for number, value in enumerate(values)
    ]
    return lines * (MIN_SIZE // sum(map(len, lines)) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", ".4f", ".3e"])
@pytest.mark.parametrize("shape", SHAPES)
@given(st.lists(st.floats(1e-9, 1e9) | st.sampled_from([math.inf, math.nan, 0.0]), min_size=1, max_size=80))
def test_the_extremes_of_every_flood_are_kept(shape: str, form: str, values: list[float]) -> None:
    lines = flood(shape, values, form)

    kept = thin(b"".join(lines), losses).splitlines(keepends=True)

    def readings(some: list[bytes]) -> list[float]:
        return [float(found[1]) for line in some if (found := loss_of(line))]

    assert set(kept) <= set(lines)
    finite = [value for value in readings(lines) if math.isfinite(value)]
    left = [value for value in readings(kept) if math.isfinite(value)]
    assert [pick(left, default=None) for pick in (min, max)] == [pick(finite, default=None) for pick in (min, max)]
    assert any(map(math.isnan, readings(kept))) == any(map(math.isnan, readings(lines)))
    assert kept[0] == lines[0]
    assert kept[-1] == lines[-1]


def test_a_line_that_is_built_otherwise_stays() -> None:
    lines = [f"step {step} loss=0.5\n".encode() for step in range(5000)]
    lines[1234] = b"step 1234 loss=nan\n"
    lines[2345] = b"Traceback (most recent call last):\n"

    kept = thin(b"".join(lines), losses).splitlines(keepends=True)

    assert len(kept) < 10
    assert lines[1234] in kept
    assert lines[2345] in kept


def test_an_exponent_belongs_to_its_number() -> None:
    lines = flood("step {step} loss={loss}", [1.0, 100.0, 1.0], ".3e")
    assert b"1.000e+02" in thin(b"".join(lines), losses)


@pytest.mark.parametrize("number", ["007.5", "+7.5", "7."])
def test_numbers_may_be_written_in_other_ways_than_in_json(number: str) -> None:
    lines = [f"step {step} loss={number}\n".encode() for step in range(5000)]
    lines[1234] = lines[1234].replace(b"7", b"9")
    lines[2345] = lines[2345].replace(b"7", b"1")

    assert {lines[1234], lines[2345]} <= set(thin(b"".join(lines), losses).splitlines(keepends=True))


def test_formats_that_take_turns_are_reduced_each_by_itself() -> None:
    lines = []
    for step in range(3000):
        lines += [f"step {step} loss={0.5 + step % 7}\n".encode(), f"eval at {step}: loss {0.25 + step % 5}\n".encode()]
    lines[1234] = b"step 617 loss=99.5\n"
    lines[2345] = b"eval at 1172: loss 77.5\n"

    kept = thin(b"".join(lines), losses).splitlines(keepends=True)

    assert len(kept) < 20
    assert {lines[0], lines[1], lines[1234], lines[2345], lines[-2], lines[-1]} <= set(kept)
    assert kept == sorted(kept, key=lines.index)


def test_a_metric_is_not_mistaken_for_other_numbers_that_are_equal_to_it() -> None:
    lines = [f"1 1 1 1 1 step {step} loss={1 + step % 7} 1 1 1\n".encode() for step in range(3000)]
    lines[1234] = b"1 1 1 1 1 step 1234 loss=99 1 1 1\n"

    kept = thin(b"".join(lines), losses).splitlines(keepends=True)

    assert len(kept) < 10
    assert lines[1234] in kept


def test_lines_around_a_new_epoch_are_kept() -> None:
    lines = [f"epoch {step // 1000} loss=0.5\n".encode() for step in range(3000)]

    def places(line: bytes) -> list[tuple[str, int]]:
        return [("loss", line.index(b"=") + 1), (EPOCH, 6)]

    kept = thin(b"".join(lines), places)

    assert kept == b"epoch 0 loss=0.5\n" * 2 + b"epoch 1 loss=0.5\n" * 2 + b"epoch 2 loss=0.5\n" * 2
