"""Traces keep their rules, survive a file, and meet bad files with a sentence."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import latecomer as lc
from delay_models import MODELS
from latecomer.trace import TraceError


def good(steps: int = 30) -> lc.Trace:
    return lc.delays.SampleCost(workers=3, cost=(1.0, 4.0), slow_share=0.3).trace(steps=steps, seed=1)


def changed(trace: lc.Trace, header: dict[str, Any] | None = None, **cells: tuple[int, Any]) -> lc.Trace:
    """The same trace with some cells replaced: column=(row, value)."""
    columns = {name: column.copy() for name, column in trace.columns.items()}
    for name, (row, value) in cells.items():
        columns[name][row] = value
    return lc.Trace(dataclasses.replace(trace.header, **(header or {})), columns)


@pytest.mark.parametrize("name", MODELS)
def test_save_and_load_give_the_same_trace(name: str, tmp_path: Path) -> None:
    trace = MODELS[name]().trace(steps=200, seed=3)
    loaded = lc.Trace.load(trace.save(tmp_path / "a.parquet"))
    assert loaded == trace
    assert loaded.digest == trace.digest
    assert loaded.header == trace.header
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_other_tools_read_the_file(tmp_path: Path) -> None:
    trace = good()
    frame = pl.read_parquet(trace.save(tmp_path / "a.parquet"))
    assert frame.columns[:5] == ["ticket", "worker", "seen", "version", "arrival"]
    assert frame["arrival"].null_count() == 2  # what is in flight at the end
    assert set(frame["status"].to_list()) == {"applied", None}


def test_files_from_before_polars_wrote_them_load() -> None:
    assert lc.Trace.load(Path(__file__).parent.parent / "golden" / "trace-by-pyarrow.parquet") == good()


BREAKS = [
    ({"ticket": (4, 9)}, 4, "tickets count"),
    ({"worker": (4, 3)}, 4, "workers are 0 to 2"),
    ({"worker": (4, -1)}, 4, "workers are 0 to 2"),
    ({"group": (4, 2)}, 4, "groups are 0 to 1"),
    ({"group": (4, -1)}, 4, "a ticket that arrived has a group"),
    ({"status": (4, 6)}, 4, "a status is one of"),
    ({"status": (4, -1)}, 4, "if and only if it arrived"),
    ({"status": (4, 4)}, 4, "if and only if it arrived"),
    ({"status": (4, 3)}, 4, "or one that never arrived, is not an update"),
    ({"arrival": (4, 0)}, 4, "if and only if it arrived"),
    ({"arrival": (4, 31)}, 4, "arrivals are 1 to 30"),
    ({"arrival": (4, -3)}, 4, "arrivals are 1 to 30"),
    ({"seen": (4, 0)}, 4, "tickets are issued in order"),
    ({"status": (4, 3), "update": (4, 0)}, None, "updates count 1, 2, ... in order of arrival"),
    ({"update": (4, 0)}, 4, "an applied or zero arrival is an update"),
    ({"update": (4, 30)}, 4, "updates count 1, 2, ... in order of arrival"),
    ({"update": (31, 31)}, 31, "or one that never arrived, is not an update"),
    ({"ended": (4, 20)}, 4, "ended is set if and only if"),
    ({"ended": (4, -2)}, 4, "a ticket ends after it was issued"),
    ({"ended": (31, 3)}, 31, "a ticket ends after it was issued"),
    ({"status": (31, 5)}, 31, "ended is set if and only if"),
    ({"status": (31, 5), "ended": (31, 30)}, 31, "a strict trace has no lost or cancelled tickets"),
    ({"version": (4, 0)}, 4, "starts from the newest iterate"),
    ({"version": (4, 9)}, 4, "starts from the newest iterate"),
    ({"version": (4, 1)}, 4, "starts from the newest iterate"),
    ({"start": (4, 0.0)}, 4, "tickets start in the order of their clock"),
    ({"start": (4, np.nan)}, 4, "every ticket has a start"),
    ({"start": (4, 1e9)}, 4, "starts before it ends"),
    ({"end": (4, 1e9)}, None, "in the order of their clock"),
]


@pytest.mark.parametrize(("cells", "row", "rule"), BREAKS, ids=[b[2] + str(b[0]) for b in BREAKS])
def test_every_rule_names_the_row_that_breaks_it(cells: dict[str, Any], row: int | None, rule: str) -> None:
    with pytest.raises(TraceError, match=rule) as caught:
        changed(good(), **cells)
    if row is not None:
        assert str(caught.value).startswith(f"Row {row} breaks the rule")


def test_two_tickets_cannot_arrive_at_once_or_before_they_were_issued() -> None:
    trace = good()
    other = int(trace.columns["arrival"][5])
    with pytest.raises(TraceError, match=r"no two tickets have the same arrival|arrivals are 1 to"):
        changed(trace, arrival=(4, other))
    # Swap two arrivals so that a late ticket arrives before it was issued.
    columns = {name: column.copy() for name, column in trace.columns.items()}
    first, last = int(trace.rows[0]), int(trace.rows[-1])
    columns["arrival"][first], columns["arrival"][last] = columns["arrival"][last], columns["arrival"][first]
    with pytest.raises(TraceError, match="a ticket arrives after it was issued"):
        lc.Trace(trace.header, columns)


def test_the_strict_rule_is_only_for_runs_without_joins() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=12, seed=0)
    columns = {name: column.copy() for name, column in trace.columns.items()}
    columns["worker"][[6, 7]] = columns["worker"][[7, 6]]  # two workers have taken over each other's job
    with pytest.raises(TraceError, match=r"goes on from|one ticket at a time"):
        lc.Trace(trace.header, columns)


@given(data=st.data())
def test_no_change_of_the_schedule_goes_unnoticed(data: st.DataObject) -> None:
    """Change one cell of what makes the schedule: it is refused, or it is another schedule."""
    trace = good()
    name = data.draw(st.sampled_from(["worker", "seen", "version", "arrival", "group", "sample", "status"]))
    row = data.draw(st.integers(0, len(trace.columns[name]) - 1))
    value = data.draw(st.integers(0, 100))
    if value == int(trace.columns[name][row]):
        return
    try:
        other = changed(trace, **{name: (row, value)})
    except (TraceError, OverflowError):
        return
    assert other.digest != trace.digest


# ---- files ----------------------------------------------------------------------------------------------------------


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = good().save(tmp_path / "a.parquet").read_bytes()
    path = tmp_path / "b.parquet"
    for size in [0, 1, 3, 4, 8, 100, *range(200, len(whole), 97), len(whole) - 8, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError) as caught:
            lc.Trace.load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@settings(max_examples=150)
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
@example(changes=[(0.39453125, 128)])  # a column's name that is no text
def test_hostile_bytes_give_a_sentence_or_a_trace(changes: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = good().save(Path(folder) / "a.parquet")
        raw = bytearray(path.read_bytes())
        for where, value in changes:
            raw[int(where * len(raw))] = value
        path.write_bytes(raw)
        try:
            sentence = lc.Trace.load(path).describe() and "fine"
        except TraceError as error:
            sentence = str(error)
        assert sentence
        assert "\n" not in sentence


def rewrite(path: Path, change: Any) -> None:
    """Write the file again with another table, or with another header: ``change`` returns either, or both."""
    frame, header = pl.read_parquet(path), pl.read_parquet_metadata(path)["latecomer.trace"]
    changed = change(frame, header)
    if isinstance(changed, pl.DataFrame):
        frame = changed
    else:
        header = changed
    frame.write_parquet(path, metadata={} if header is None else {"latecomer.trace": header})


def with_header(**values: Any) -> Any:
    def change(frame: pl.DataFrame, text: str) -> str:
        header = json.loads(text)
        for key, value in values.items():
            header.pop(key) if value is ... else header.update({key: value})
        return json.dumps(header)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, h: None, "is a Parquet file but no trace: it has no latecomer.trace header"),
        (lambda t, h: "[]", "header that cannot be understood"),
        (lambda t, h: "[" * 100_000, "header that cannot be understood"),
        (lambda t, h: '"' + "x" * (1 << 26) + '"', "cannot be understood"),
        (with_header(schema=99), "trace schema 99; this version of Latecomer reads 2"),
        (with_header(workers="many"), "an impossible workers"),
        (with_header(workers=-1), "an impossible workers"),
        (with_header(workers=...), "cannot be understood"),
        (with_header(surprise=1), "cannot be understood"),
        (with_header(groups=[]), "an impossible groups"),
        (with_header(clock="sundial"), "an impossible clock"),
        (lambda t, h: t.drop("version"), "lacks the columns version"),
        (lambda t, h: t.with_columns(worker=pl.lit("a")), "column worker of type string instead of int32"),
        (lambda t, h: t.with_columns(worker=pl.lit(None, pl.Int32)), "an empty worker in 32 rows"),
        (lambda t, h: t.with_columns(status=pl.lit("eaten")), "unknown status 'eaten'"),
        (lambda t, h: t.with_columns(status=pl.lit(3.5)), "column status of type float64 instead of string"),
        (with_header(seed=-1), "an impossible seed"),
        (lambda t, h: t.with_columns(status=pl.lit([1])), r"column status of type list\(int\d+\) instead of string"),
        (lambda t, h: t.head(0), "has no rows"),
        (lambda t, h: t.slice(5), r"Row \d+ breaks the rule"),
    ],
)
def test_foreign_and_broken_files(change: Any, message: str, tmp_path: Path) -> None:
    path = good().save(tmp_path / "a.parquet")
    rewrite(path, change)
    with pytest.raises(TraceError, match=message) as caught:
        lc.Trace.load(path)
    assert str(path) in str(caught.value)


def test_two_columns_of_the_same_name_get_a_sentence(tmp_path: Path) -> None:
    path = good().save(tmp_path / "a.parquet")
    rewrite(path, lambda frame, header: header)  # without our checksum of the bytes
    path.write_bytes(path.read_bytes().replace(b"\x06update", b"\x06status"))
    with pytest.raises(TraceError, match="two columns of the same name"):
        lc.Trace.load(path)


@settings(max_examples=60)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_gives_another_trace(where: float, bit: int) -> None:
    trace = good()
    with tempfile.TemporaryDirectory() as folder:
        path = trace.save(Path(folder) / "a.parquet")
        raw = bytearray(path.read_bytes())
        raw[int(where * len(raw))] ^= 1 << bit
        path.write_bytes(raw)
        with suppress(TraceError):
            assert lc.Trace.load(path) == trace


def test_damage_is_noticed_before_polars_believes_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Polars asks for 2 ** 61 bytes when it believes a damaged size, which ends the process."""
    path = good().save(tmp_path / "a.parquet")
    whole = path.read_bytes()
    for where in range(0, whole.index(b"latecomer.sha256"), 41):
        path.write_bytes(whole[:where] + bytes([whole[where] ^ 0xFF]) + whole[where + 1 :])
        with pytest.raises(TraceError, match=r"is not a trace|its bytes do not fit their checksum"):
            lc.Trace.load(path)
    assert capfd.readouterr().err == ""


def test_a_change_that_keeps_all_rules_is_noticed(tmp_path: Path) -> None:
    path = good().save(tmp_path / "a.parquet")
    rewrite(path, with_header(model="somebody else's"))
    with pytest.raises(TraceError, match="does not match its checksum"):
        lc.Trace.load(path)


def test_what_is_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a folder"):
        lc.Trace.load(tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        lc.Trace.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("ticket,worker\n0,0\n")
    with pytest.raises(TraceError, match="no Parquet file at all"):
        lc.Trace.load(tmp_path / "text")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = good().save(tmp_path / "a.parquet")
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        good(20).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_describe_summarises_a_trace() -> None:
    text = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=2000, seed=0).describe()
    assert "2,000 arrivals of 2,006 tickets, 7 workers, policy async, seed 0" in text
    assert "in flight besides the arriving one: 6.00 on average, at most 6" in text
    assert "slow" in text
    assert "virtual clock" in good().describe()
    assert "... and 80 more" in lc.delays.Uniform(workers=100).trace(steps=500, seed=0).describe()


def test_columns_are_read_only_for_the_trace_and_not_for_the_caller() -> None:
    trace = good()
    with pytest.raises(ValueError, match="read-only"):
        trace.columns["worker"][0] = 1
    mine = {name: column.copy() for name, column in trace.columns.items()}
    lc.Trace(trace.header, mine)
    mine["worker"][0] = 1


def test_texts_in_a_header_are_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from latecomer.cli.main import main

    path = changed(good(), header={"model": "x[/foo] [bold]"}).save(tmp_path / "a.parquet")
    assert main(["trace", "show", str(path)]) == 0
    assert "x[/foo] [bold]" in capsys.readouterr().out


def test_a_header_with_many_workers_costs_nothing() -> None:
    assert "... and 1,999,999,980 more" in changed(good(), header={"workers": 2_000_000_000}).describe()


def test_files_are_everybodys(tmp_path: Path) -> None:
    path = good().save(tmp_path / "a.parquet")
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_unpacks_to_far_more_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = good().save(tmp_path / "a.parquet")
    row = pl.read_parquet(path)[:1]
    monkeypatch.setattr(pl, "read_parquet", lambda *_, **__: pytest.fail("it was unpacked"))
    for many, long in ((1_000_000, 1), (3, 20_000_000)):
        with_text = row.with_columns(status=pl.lit("applied" * long if long > 1 else "applied"))
        bomb = with_text[[0] * many]
        bomb.write_parquet(path, metadata=dict(pl.read_parquet_metadata(path)), row_group_size=many)
        assert path.stat().st_size < 100_000
        with pytest.raises(
            TraceError, match=rf"would unpack to {many:,} rows and [\d,]+ bytes .* made to fill the memory"
        ):
            lc.Trace.load(path)


def test_no_trace_is_refused_for_its_size(tmp_path: Path) -> None:
    """The schedule that compresses best: one worker, so that nothing but the samples is random."""
    path = lc.delays.Constant(workers=1).trace(steps=100_000, seed=0).save(tmp_path / "a.parquet")
    assert path.stat().st_size > 2 * 4 * 100_000  # twice what is asked for
    assert len(lc.Trace.load(path)) == 100_000
