"""Whatever comes off a wire is a message of ours or a FrameError, and never more memory than the limit."""

from __future__ import annotations

import math
import pickle
import select

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer.engines import Done, Evaluated, Failed, Job, Ready, Slot, WorkerSpec
from latecomer.engines import codec as f

LIMIT = 1000
NUMBERS = st.integers(0, 2**64 - 1)


def spec(**changes: object) -> WorkerSpec:
    return WorkerSpec(lc.problems.quadratic(), **{"size": 10, "dtype": torch.float32, **changes})  # type: ignore[arg-type]


def understood(data: bytes) -> f.Head:
    """Read as a server or a worker does, all the way."""
    head = f.unpack_head(data, LIMIT)
    assert sum(head.lengths) <= LIMIT
    if head.kind == f.JOB:
        f.job_of(head)
    elif head.kind not in (f.BEAT, f.STOP):
        f.event_of(0, head)
    return head


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(f.FrameError):
        understood(data)


@given(
    kind=st.integers(0, 255), encoding=st.integers(0, 255), number=NUMBERS, rest=st.binary(max_size=80),
    lengths=st.lists(NUMBERS | st.integers(0, 100), max_size=6),
)  # fmt: skip
def test_heads_of_the_right_form_with_any_contents(
    kind: int, encoding: int, number: int, rest: bytes, lengths: list[int]
) -> None:
    data = f.pack_head(f.Head(kind, encoding, number, tuple(lengths), rest))
    try:
        head = understood(data)
    except f.FrameError:
        return
    assert f.pack_head(head) == data


@given(data=st.data(), job=st.builds(Job, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 2**62)))
def test_a_damaged_head_is_refused_or_read_as_it_is(data: st.DataObject, job: Job) -> None:
    whole = bytearray(f.pack_head(f.head_of(job, f.NATIVE, (40,))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for damaged in (bytes(whole), cut, bytes(whole) + b"\0"):
        try:
            understood(damaged)
        except f.FrameError:
            continue


WORDS = st.text(max_size=100).filter(lambda text: "\0" not in text and text.isprintable())
FLOATS = st.floats(allow_nan=False)


@given(
    st.builds(Done, st.just(3), NUMBERS, st.booleans(), FLOATS, st.integers(-(2**31), 2**31 - 1), FLOATS)
    | st.builds(Evaluated, st.just(3), NUMBERS, st.dictionaries(WORDS, FLOATS, max_size=20))
    | st.builds(Failed, st.just(3), NUMBERS, WORDS, WORDS)
    | st.builds(Ready, st.just(3), NUMBERS)
)
def test_events_come_back_as_they_went(event: Done | Evaluated | Failed | Ready) -> None:
    head = f.unpack_head(f.pack_head(f.head_of(event)), LIMIT)
    assert f.event_of(3, head) == event


@given(st.builds(Job, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 2**62), FLOATS, FLOATS, st.booleans()))
def test_jobs_come_back_as_they_went(job: Job) -> None:
    assert f.job_of(f.unpack_head(f.pack_head(f.head_of(job)), LIMIT)) == job


def test_a_pickle_is_only_bytes() -> None:
    with pytest.raises(f.FrameError):
        understood(pickle.dumps({"a": 1}))


def test_a_long_reason_is_cut_and_too_many_metrics_are_refused() -> None:
    event = f.event_of(0, f.unpack_head(f.pack_head(f.head_of(Failed(0, 1, "ä" * 9000, "b" * 9000))), 0))
    assert isinstance(event, Failed)
    assert event.reason.startswith("ä" * 800)
    assert len(event.where) == f._TEXT_LIMIT
    head = f.pack_head(f.head_of(Failed(0, 1, "ä" * 9000, "b" * 9000)))
    assert len(head) < select.PIPE_BUF  # a dying worker writes it atomically
    with pytest.raises(f.FrameError, match="fewer metrics"):
        f.pack_head(f.head_of(Evaluated(0, 1, {f"metric number {i}": 0.0 for i in range(2000)})))


def test_other_versions_and_lengths_are_named() -> None:
    data = bytearray(f.beat())
    data[4] = 9
    with pytest.raises(f.FrameError, match="Version 9"):
        f.unpack_head(bytes(data), 0)
    layout = f.Layout(spec())
    with pytest.raises(f.FrameError, match=r"Parts of \[39\] bytes \(expected \[40\]\)"):
        layout.check((39,), layout.up(f.NATIVE))
    with pytest.raises(f.FrameError, match="A part of 3 bytes"):
        layout.read(b"abc", torch.zeros(10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_cross_the_wire_to_the_bit_and_bfloat16_halves_them(dtype: torch.dtype) -> None:
    layout = f.Layout(spec(dtype=dtype))
    there, back = torch.randn(10, dtype=dtype), torch.empty(10, dtype=dtype)
    there[0] = math.inf
    for encoding in (f.NATIVE, f.BF16):
        slot = Slot(0, [back], there, torch.empty(0, dtype=torch.float64))
        _, data = layout.answer_message(Done(0, 1, finite=True), slot, encoding)
        assert (len(data),) == layout.up(encoding)
        layout.read_contribution([data], Slot(0, [there], back, slot.statistics))
        assert torch.equal(back, there if encoding == f.NATIVE else there.to(torch.bfloat16).to(dtype))


def test_what_is_evaluated_is_never_rounded() -> None:
    layout = f.Layout(spec(statistics=3, points=2))
    assert layout.down(Job(0, 0), f.BF16) == (20, 20)
    assert layout.down(Job(0, 0, evaluate=True), f.BF16) == (40, 24)
    assert layout.up(f.BF16) == (20, 24)
    assert layout.down(Job(0, 0), f.SHARED) == layout.up(f.SHARED) == ()
    assert layout.limit == 80
