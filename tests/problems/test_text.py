"""The text problem: a causal model, windows by length, costs that grow with it, and held-out files."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

import latecomer as lc
from latecomer.core.flat import FlatModule
from latecomer.problems.text import Text, Transformer, _sources, _split

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LIMIT = 300_000


def tiny(**options) -> Text:
    chosen = {"width": 16, "layers": 1, "heads": 2, "lengths": (16, 32), "shares": (0.7, 0.3), "evaluated": 1024}
    return Text(**{**chosen, "limit": LIMIT, **options})


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("t", [0, 5, 18])
def test_no_logit_sees_a_later_byte(t: int) -> None:
    torch.manual_seed(0)
    network = Transformer(width=16, layers=3, heads=4, longest=20)
    text = torch.randint(256, (3, 20))
    changed = text.clone()
    changed[:, t + 1 :] = (text[:, t + 1 :] + torch.randint(1, 256, (3, 19 - t))) % 256
    with torch.no_grad():
        before, after = network(text), network(changed)
        shorter = network(text[:, : t + 1])
    torch.testing.assert_close(before[:, : t + 1], after[:, : t + 1])
    torch.testing.assert_close(before[:, : t + 1], shorter)
    assert (before[:, t + 1 :] - after[:, t + 1 :]).abs().amax(-1).min() > 1e-3


def test_every_logit_sees_all_bytes_before_it_and_where_they_are() -> None:
    torch.manual_seed(0)
    network = Transformer(width=16, layers=1, heads=2, longest=8)
    with torch.no_grad():
        before = network(torch.zeros(1, 8, dtype=torch.int64))
        for position in range(8):
            text = torch.zeros(1, 8, dtype=torch.int64)
            text[0, position] = 7
            assert (network(text) - before)[0, position:].abs().amax(-1).min() > 1e-6
    assert (before[0, 0] - before[0, 1]).abs().max() > 1e-3


def test_batches_follow_their_seed_and_group() -> None:
    problem, other = tiny(), tiny()
    corpus = bytes(problem._text.tolist())
    for group, length in enumerate((16, 32)):
        inputs, following = problem.batch(2**64 - 3, group)
        again = other.batch(2**64 - 3, group)
        assert torch.equal(inputs, again[0])
        assert torch.equal(following, again[1])
        assert inputs.shape == following.shape == (8, length)
        assert torch.equal(inputs[:, 1:], following[:, :-1])
        for row, last in zip(inputs.tolist(), following[:, -1].tolist(), strict=True):
            assert bytes([*row, last]) in corpus
        assert not torch.equal(problem.batch(124, group)[0], inputs)
    assert problem.groups == 2


def test_windows_reach_both_ends_of_the_text(tmp_path: Path) -> None:
    files = {f"m{i}.py": chr(97 + i) * 4 for i in range(10)}
    problem = tiny(folder=write(tmp_path, files), lengths=(3,), shares=(1.0,), heads=1, evaluated=3)
    assert len(problem._text) == 36
    inputs, following = (torch.cat(part) for part in zip(*(problem.batch(s, 0) for s in range(100)), strict=True))
    assert (inputs[:, 0] == ord("a")).any()
    assert (following[:, -1] == ord("i")).any()
    assert len(torch.unique(torch.cat([inputs, following[:, -1:]], 1), dim=0)) == 33  # aaaa, aaab, ..., iiii


def test_models_follow_their_seed_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    problem = tiny()
    problem.costs(repeats=1)
    one, same, other = (FlatModule(problem.model(s)).x for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.rand(3), expected)


def test_evaluation_is_fixed_and_adds_up() -> None:
    problem = tiny()
    model = problem.model(0)
    with torch.no_grad():
        metrics = problem.evaluate(model)
        assert metrics == problem.evaluate(model)
        starts = np.linspace(0, len(problem._held_out) - 17, 64).astype(int)
        rows = torch.stack([problem._held_out[s : s + 17] for s in starts.tolist()]).long()
        by_hand = -model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None]).mean()
    assert list(metrics) == ["loss", "bits_per_byte", "loss_16", "loss_32"]
    assert metrics["loss"] == pytest.approx(0.7 * metrics["loss_16"] + 0.3 * metrics["loss_32"])
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / math.log(2))
    assert metrics["loss_16"] == pytest.approx(float(by_hand), rel=1e-5)
    assert metrics["loss"] == pytest.approx(math.log(256), abs=0.2)  # it knows nothing yet


def test_a_window_longer_than_what_is_evaluated_at_once() -> None:
    problem = tiny(lengths=(16, 5000), shares=(0.5, 0.5), evaluated=16)
    with torch.no_grad():
        assert math.isfinite(problem.evaluate(problem.model(0))["loss_5000"])


@pytest.mark.parametrize("method", ["async-sgd", "ordered-momentum"])
def test_training_lowers_the_loss(method: str) -> None:
    problem = tiny()
    schedule = lc.delays.SampleCost(workers=4, cost=(1.0, 3.0), shares=problem.shares).trace(steps=60, seed=0)
    assert set(schedule.group.tolist()) == {0, 1}
    run, again = (lc.simulate(problem, method, schedule, evaluate_every=60, lr=0.05) for _ in range(2))
    assert run.diverged_at is None
    for key in ("loss", "loss_16", "loss_32"):
        assert run.final[key] < run.history[key][0] - 0.5
    assert all(torch.equal(value, again.state[name]) for name, value in run.state.items())


def test_costs_make_a_schedule() -> None:
    problem = tiny(width=32, lengths=(16, 512))
    assert all(cost > 0 for cost in problem.costs(repeats=1))
    trace = lc.delays.SampleCost(4, cost=(1.0, 14.0), shares=problem.shares).trace(steps=200, seed=0)
    assert trace.delay[trace.group == 1].mean() > trace.delay[trace.group == 0].mean()


def test_held_out_files_are_not_trained_on() -> None:
    problem = tiny()
    train, held_out = _split(LIBRARY, LIMIT)
    assert b"".join(train) == bytes(problem._text.tolist())
    assert b"".join(held_out) == bytes(problem._held_out.tolist())
    assert sum(map(len, train + held_out)) == LIMIT
    assert not set(train) & set(held_out)
    assert len(held_out) == (len(train) + len(held_out)) // 10
    text = b"".join(train)
    assert not any(file in text for file in held_out if len(file) > 200)


def test_which_files_are_read(tmp_path: Path) -> None:
    package = {"p/__init__.py": "", "p/b.py": "package", "p/tests/__init__.py": "no", "p/q/__init__.py": "inner"}
    skipped = {"test/__init__.py": "no", "idlelib/__init__.py": "no", "site-packages/x.py": "no", "plain/x.py": "no"}
    files = {"z.py": "last", "a.py": "first", "a.txt": "no", "_sysconfigdata_x.py": "no"}
    folder = write(tmp_path, {**package, **skipped, **files})
    names = [path.relative_to(folder).as_posix() for path in _sources(folder)]
    assert names == ["a.py", "p/__init__.py", "p/b.py", "p/q/__init__.py", "z.py"]
    assert _split(folder, 10**6)[0] == [b"first", b"package", b"inner", b"last"]
    assert _split(folder, 7)[0] == [b"first", b"pa"]


def test_the_same_text_twice_is_read_once(tmp_path: Path) -> None:
    files = {f"m{i:02}.py": f"text {min(i, 9)}" for i in range(20)}
    train, held_out = _split(write(tmp_path, files), 10**6)
    assert (len(train), held_out) == (9, [b"text 9"])


def test_the_name_of_a_run_knows_the_text(tmp_path: Path) -> None:
    assert repr(tiny()) == repr(tiny(lengths=[16, 32], shares=np.array([0.7, 0.3])))
    assert repr(tiny(limit=LIMIT - 1)) != repr(tiny())
    assert str(LIBRARY) not in repr(tiny())
    files = {f"m{i}.py": f"some text, long enough for a window, number {i}" for i in range(10)}
    one = tiny(folder=write(tmp_path / "a", files))
    same = tiny(folder=write(tmp_path / "b", files))
    other = tiny(folder=write(tmp_path / "c", {**files, "m9.py": "some text, long enough for a window, and other"}))
    assert repr(one) == repr(same) != repr(other)
    for option in ({"width": 18}, {"layers": 2}, {"heads": 4}, {"batch_size": 9}, {"evaluated": 99}):
        assert repr(tiny(**option)) != repr(tiny())
    for option in ({"lengths": (16, 33)}, {"shares": (0.6, 0.4)}):
        assert repr(tiny(**option)) != repr(tiny())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"width": 0}, ValueError, "Invalid width value: 0"),
        ({"layers": 1.5}, TypeError, "Invalid layers value: 1.5"),
        ({"heads": 3}, ValueError, r"Invalid heads value: 3 \(expected a divisor of the width, 16\)"),
        ({"lengths": 16}, TypeError, "Invalid lengths value: 16"),
        ({"lengths": "16"}, TypeError, "Invalid lengths value: '16'"),
        ({"lengths": ()}, ValueError, r"Invalid lengths value: \[\]"),
        ({"lengths": (0, 16)}, ValueError, "Invalid length value: 0"),
        ({"lengths": (32, 16)}, ValueError, r"Invalid lengths value: \[32, 16\] .*each longer than the last"),
        ({"lengths": (16, LIMIT)}, ValueError, "shorten the windows, or raise the limit"),
        ({"shares": (1.0,)}, ValueError, "Got 1 shares for 2 lengths"),
        ({"shares": 0.5}, TypeError, "Invalid shares value: 0.5"),
        ({"shares": (0.5, 0.4)}, ValueError, "add up to 0.9"),
        ({"batch_size": 0}, ValueError, "Invalid batch_size value: 0"),
        ({"evaluated": 0}, ValueError, "Invalid evaluated value: 0"),
        ({"limit": 0}, ValueError, "Invalid limit value: 0"),
        ({"limit": 100}, ValueError, "fewer than 10 Python files within 100 bytes"),
        ({"folder": "no such folder"}, ValueError, "There is no folder 'no such folder'"),
    ],
)
def test_bad_problems(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny(**options)


def test_costs_need_a_repeat() -> None:
    with pytest.raises(ValueError, match="Invalid repeats value: 0"):
        tiny().costs(repeats=0)


def test_the_halves_of_the_held_out_text_do_not_overlap() -> None:
    whole, first, second = (tiny(split=split)._held_out for split in ("all", "validation", "test"))
    assert torch.equal(torch.cat([first, second]), whole)
    assert abs(len(first) - len(second)) <= 1
    with pytest.raises(ValueError, match="Invalid split value: 'train'"):
        tiny(split="train")
