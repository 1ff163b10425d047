"""ResNet-18 has torchvision's names and shapes, weights fit or meet a sentence, CIFAR-10 runs resume to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

import latecomer as lc
from latecomer.problems import resnet
from latecomer.problems.cifar10 import Cifar10
from latecomer.problems.resnet import ResNet18, load_weights, read_weights

TRAIN, HELD = 5200, 5000
SLIM = 0.0625  # four channels


def known(classes: int = 1000, first: int = 64) -> dict[str, tuple[int, ...]]:
    """torchvision's resnet18, as published: names in their order, with shapes."""

    def norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
        of_channels = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
        return {**of_channels, f"{name}.num_batches_tracked": ()}

    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (first, 3, 7, 7), **norm("bn1", first)}
    before = first
    for layer, channels in enumerate((first, 2 * first, 4 * first, 8 * first), start=1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            shapes |= {f"{name}.conv1.weight": (channels, before, 3, 3), **norm(f"{name}.bn1", channels)}
            shapes |= {f"{name}.conv2.weight": (channels, channels, 3, 3), **norm(f"{name}.bn2", channels)}
            if channels != before:
                shapes |= {f"{name}.downsample.0.weight": (channels, before, 1, 1)}
                shapes |= norm(f"{name}.downsample.1", channels)
            before = channels
    return {**shapes, "fc.weight": (classes, 8 * first), "fc.bias": (classes,)}


def fake(seed: int = 0, classes: int = 1000, first: int = 4, counters: bool = True) -> dict[str, Tensor]:
    """A state dict of the published names and shapes, filled at random; slim, unless it has to be the full size."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in known(classes, first).items():
        if name.endswith("num_batches_tracked"):
            if counters:
                state[name] = torch.tensor(7)
        else:
            state[name] = torch.rand(shape, generator=generator) * 0.1 + 0.01
    return state


def saved(path: Path, state: Any = None, **options: Any) -> Path:
    torch.save(fake() if state is None else state, path, **options)
    return path


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", TRAIN), ("test", 30)):
        made[f"{part}_images"] = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        made[f"{part}_labels"] = np.arange(count, dtype=np.int64) % 10
    return made


@pytest.fixture
def tiny(arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """CIFAR-10 without CIFAR-10; lists the folders it was looked for in."""
    asked: list[Any] = []

    def load(name: str, data_dir: Any = None) -> dict[str, np.ndarray]:
        assert name == "cifar10"
        asked.append(data_dir)
        return arrays

    monkeypatch.setattr("latecomer.data.load", load)
    return asked


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch's hub."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- the network ----------------------------------------------------------------------------------------------------


def test_names_shapes_and_order_are_those_of_torchvision() -> None:
    model = ResNet18(num_classes=1000)
    assert len(known()) == 122
    assert [(name, tuple(value.shape)) for name, value in model.state_dict().items()] == list(known().items())
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    assert sum(p.numel() for p in ResNet18().parameters()) == 11_689_512 - 990 * 513


def by_hand(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """What resnet18 computes in evaluation, read off its description."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    x = functional.conv2d(x, state["conv1.weight"], stride=2, padding=3)
    x = functional.max_pool2d(norm(x, "bn1").clamp(min=0), 3, stride=2, padding=1)
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            inner = functional.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            inner = norm(inner, f"{name}.bn1").clamp(min=0)
            inner = norm(functional.conv2d(inner, state[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                x = functional.conv2d(x, state[f"{name}.downsample.0.weight"], stride=2)
                x = norm(x, f"{name}.downsample.1")
            x = (inner + x).clamp(min=0)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def test_the_network_computes_what_resnet18_does() -> None:
    torch.manual_seed(0)
    model = ResNet18(width=0.25, num_classes=7).double()
    model(torch.randn(8, 3, 64, 64, dtype=torch.float64))  # the running means are no longer zero
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(model.eval()(images), by_hand(model.state_dict(), images))


@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_width_classes_and_stem(stem: str) -> None:
    model = ResNet18(width=0.125, num_classes=3, stem=stem)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert model.fc.in_features == 64
    inside = model.layer1(model.maxpool(model.conv1(torch.zeros(2, 3, 32, 32))))
    assert inside.shape == (2, 8, *((8, 8) if stem == "imagenet" else (32, 32)))
    assert list(model.state_dict()) == list(known())
    assert ResNet18(width=1e-9).conv1.out_channels == 1


def test_convolutions_start_by_fan_out() -> None:
    torch.manual_seed(0)
    weight = ResNet18().layer3[0].conv1.weight.detach()  # 128 channels in, 256 out
    assert float(weight.std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)


# ---- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("counters", [True, False])
def test_weights_from_a_file(tmp_path: Path, zipped: bool, counters: bool) -> None:
    state = fake(counters=counters)
    path = saved(tmp_path / "w.pth", state, _use_new_zipfile_serialization=zipped)
    model = ResNet18(width=SLIM)
    head = model.fc.weight.detach().clone()
    left = load_weights(model, str(path))
    assert left == tuple(n for n in known() if n in ("fc.weight", "fc.bias") or n not in state)
    for name, value in model.state_dict().items():
        if name not in left:
            assert torch.equal(value, state[name])
    assert torch.equal(model.fc.weight, head)
    assert model.bn1.num_batches_tracked == (7 if counters else 0)
    assert all(p.requires_grad for p in model.parameters())
    assert load_weights(ResNet18(width=SLIM, num_classes=1000), path) == () or not counters


def test_a_last_layer_for_as_many_classes_is_taken(tmp_path: Path) -> None:
    model = ResNet18(width=SLIM)
    assert load_weights(model, saved(tmp_path / "w.pth", fake(classes=10))) == ()
    assert torch.equal(model.fc.bias, fake(classes=10)["fc.bias"])


def test_parameters_in_a_file_are_weights_too(tmp_path: Path) -> None:
    source = ResNet18(width=SLIM)
    path = saved(tmp_path / "w.pth", source.state_dict(keep_vars=True))
    model = ResNet18(width=SLIM)
    load_weights(model, path)
    assert same(model.state_dict(), source.state_dict())


def test_imagenet_weights_are_looked_for_and_checked(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = hub / "resnet18-f37072fd.pth"
    with pytest.raises(ValueError, match=r"no ImageNet weights at .*f37072fd.pth .*: place .* weights 'none'"):
        read_weights("imagenet")
    place.write_bytes(b"half")
    start = hashlib.sha256(b"half").hexdigest()[:8]
    with pytest.raises(ValueError, match=f"SHA-256 starts with {start}, not f37072fd: download it again"):
        load_weights(ResNet18(width=SLIM), "imagenet")
    digest = hashlib.sha256(saved(place).read_bytes()).hexdigest()
    monkeypatch.setattr(resnet, "_FILE", f"resnet18-{digest[:8]}.pth")
    place.rename(hub / resnet._FILE)
    state, found = read_weights("imagenet")
    assert found == digest
    assert same(state, fake())


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in fake(classes=10).items() if key != name}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: without("layer3.1.bn2.running_var"), "layer3.1.bn2.running_var is missing; pass the state dict"),
        (lambda: without("fc.bias"), "fc.bias is missing"),
        (lambda: {**fake(), "layer1.0.conv3.weight": torch.ones(1)}, "layer1.0.conv3.weight is not a part of this"),
        (lambda: {f"module.{k}": v for k, v in fake().items()}, "module.conv1.weight is not a part of this network"),
        (
            lambda: {**fake(), "conv1.weight": torch.ones(4, 3, 3, 3)},
            r"conv1.weight is \(4, 3, 3, 3\) there and \(4, 3, 7, 7\) here",
        ),
        (lambda: {**fake(), "fc.weight": torch.ones(1000, 2048)}, r"fc.weight is \(1000, 2048\) there"),
        (lambda: {**fake(), "bn1.weight": torch.ones(4, dtype=torch.int64)}, "bn1.weight is of torch.int64"),
        (lambda: {**fake(), "bn1.weight": torch.full((4,), torch.nan)}, "bn1.weight has a NaN or an infinity"),
        (lambda: {"state_dict": fake()}, "is not a state dict, 'state_dict' is dict: save model.state_dict"),
        (lambda: [torch.ones(1)], "is a list, not a state dict"),
        (lambda: {}, "conv1.weight is missing"),
    ],
)
def test_files_that_do_not_fit_change_nothing(make: Callable[[], Any], message: str, tmp_path: Path) -> None:
    model = ResNet18(width=SLIM)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_weights(model, saved(tmp_path / "w.pth", make()))
    assert same(model.state_dict(), before)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 1000, -1000])
def test_a_file_cut_short_is_refused(tmp_path: Path, zipped: bool, kept: int) -> None:
    path = saved(tmp_path / "w.pth", ResNet18(width=SLIM).state_dict(), _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is truncated or not a file of weights: download it again"):
        read_weights(path)


def test_files_that_are_not_there_or_not_safe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Cannot read the weights .*absent.pth \(No such file"):
        read_weights(tmp_path / "absent.pth")
    with pytest.raises(ValueError, match=r"Cannot read the weights .*Is a directory"):
        read_weights(tmp_path)
    with pytest.raises(ValueError, match="not a file of weights"):  # a whole model would run code of the file's
        read_weights(saved(tmp_path / "model.pth", ResNet18(width=SLIM)))
    for wrong in (None, 3, ""):
        with pytest.raises(TypeError, match=r"Invalid weights value: .* \(expected 'imagenet', 'none' or the path"):
            read_weights(wrong)  # type: ignore[arg-type]


# ---- the problem ----------------------------------------------------------------------------------------------------


def test_groups_split_and_pixels(tiny: list[Any], arrays: dict[str, np.ndarray]) -> None:
    problem = Cifar10(width=SLIM, weights="none")
    assert problem.shares == (0.5, 0.5)
    assert problem.slow_classes == (5, 6, 7, 8, 9)
    seen: tuple[set[int], set[int]] = (set(), set())
    for sample in range(40):
        for group in (0, 1):
            images, labels = problem.batch(sample, group)
            assert images.shape == (16, 3, 32, 32)
            seen[group].update(labels.tolist())
            assert int(problem.picked(sample, group).max()) < TRAIN - HELD
    assert seen == ({0, 1, 2, 3, 4}, {5, 6, 7, 8, 9})
    picked = problem.picked(3, 1).numpy()
    expected = arrays["train_images"][picked] / 255.0
    expected = (expected - np.reshape([0.4914, 0.4822, 0.4465], (3, 1, 1))) / np.reshape(
        [0.2470, 0.2435, 0.2616], (3, 1, 1)
    )
    np.testing.assert_allclose(problem.batch(3, 1)[0].numpy(), expected, rtol=1e-5, atol=1e-5)
    held = Cifar10(width=SLIM, weights="none", split="validation", data_dir=Path("there"))
    assert np.array_equal(held._test_labels, arrays["train_labels"][-HELD:])
    assert tiny == [None, "there"]


def test_models_follow_their_seed_and_leave_torch_alone(tiny: list[Any]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    problem = Cifar10(width=SLIM, weights="none")
    one, again, other = (problem.model(seed).state_dict() for seed in (0, 0, 1))
    assert same(one, again)
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])
    assert torch.equal(torch.rand(3), expected)


def test_fine_tuning_starts_from_the_file_and_the_seed_draws_the_last_layer(tiny: list[Any], tmp_path: Path) -> None:
    state = fake(first=64)
    path = saved(tmp_path / "w.pth", state)
    problem = Cifar10(weights=path)
    path.unlink()  # it was read
    one, again, other = (problem.model(seed) for seed in (0, 0, 1))
    assert same(one.state_dict(), again.state_dict())
    assert torch.equal(one.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])
    assert torch.equal(one.layer4[1].conv2.weight, other.layer4[1].conv2.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    with torch.no_grad():
        one.conv1.weight.zero_()
    assert bool(problem.model(0).conv1.weight.any())  # the problem's own copy is not trained


def test_weights_kept_by_hash_are_found_without_their_path(
    tiny: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path / "data"))
    source = tmp_path / "w.safetensors"
    safetensors.torch.save_file(fake(classes=4), source)
    name = resnet.keep_weights(source)
    assert name == "sha256:" + hashlib.sha256(source.read_bytes()).hexdigest()
    source.unlink()
    problem = Cifar10(width=SLIM, weights=name)
    assert name in repr(problem)
    assert torch.equal(problem.model(0).layer4[1].conv2.weight, fake()["layer4.1.conv2.weight"])  # type: ignore[union-attr, index]
    (tmp_path / "data" / "weights" / name.removeprefix("sha256:")).write_bytes(b"other")
    with pytest.raises(ValueError, match="is truncated or another file, its SHA-256 starts with"):
        Cifar10(width=SLIM, weights=name)


def test_frozen_averages_are_used_in_training_and_never_change(tiny: list[Any], tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pth")
    trace = lc.delays.DataDependent(workers=3, slow_share=0.5).trace(steps=6, seed=0)
    states = {}
    for frozen in (True, False):
        problem = Cifar10(width=SLIM, weights=path, batch_size=4, frozen_batch_norm=frozen)
        states[frozen] = lc.simulate(problem, "momentum", trace, lr=0.01, beta=0.1, evaluate_every=6).state
    for name in ("bn1.running_mean", "layer4.1.bn2.running_var", "bn1.num_batches_tracked"):
        assert torch.equal(states[True][name], fake()[name])
        assert not torch.equal(states[False][name], fake()[name])
    assert not torch.equal(states[True]["bn1.weight"], fake()["bn1.weight"])  # scale and shift are trained
    model = Cifar10(width=SLIM, weights=path, frozen_batch_norm=True).model(0)
    image = torch.randn(2, 3, 32, 32)
    other = torch.cat([image[:1], torch.randn(1, 3, 32, 32)])
    torch.testing.assert_close(model(image)[0], model(other)[0])  # an image's logits do not depend on its batch


def test_the_repr_identifies_the_run(tiny: list[Any], tmp_path: Path) -> None:
    assert repr(Cifar10(width=0.25, weights="none", slow_classes=[7, 2])) == (
        "Cifar10(width=0.25, weights='none', stem='imagenet', slow_classes=(2, 7), batch_size=16, split='test')"
    )
    kinds: list[dict[str, Any]] = [
        {},
        {"width": 0.25},
        {"stem": "small"},
        {"slow_classes": (1,)},
        {"batch_size": 8},
        {"split": "validation"},
    ]
    assert len({repr(Cifar10(**{"width": SLIM, "weights": "none", **kind})) for kind in kinds}) == len(kinds)
    path = saved(tmp_path / "a.pth", fake(first=64))
    one = repr(Cifar10(weights=path))
    assert repr(Cifar10(weights=path.rename(tmp_path / "b.pth"))) == one  # the bytes count, not where they lie
    assert repr(Cifar10(weights=saved(path, fake(seed=1, first=64)))) != one
    assert str(tmp_path) not in one


def test_imagenet_is_the_default_and_never_replaced_in_silence(tiny: list[Any], hub: Path) -> None:
    with pytest.raises(ValueError, match="There are no ImageNet weights at"):
        Cifar10()
    assert tiny == []


@pytest.mark.parametrize("method", ["ordered-momentum", "ordered-mu2"])
def test_batch_norm_goes_on_from_a_checkpoint_with_the_same_bits(method: str, tiny: list[Any], tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(server: lc.Server) -> None:
        if server.optimizer.t == 7:
            raise StopError

    trace = lc.delays.DataDependent(workers=3, slow_share=0.5).trace(steps=12, seed=0)
    path = tmp_path / "run.ckpt"

    def run(**how: Any) -> lc.Run:
        problem = Cifar10(width=SLIM, weights="none", batch_size=4)
        return lc.simulate(problem, method, trace, lr=0.01, beta=0.1, evaluate_every=6, **how)

    straight = run()
    with pytest.raises(StopError):
        run(checkpoint=path, checkpoint_every=5, callbacks=[lc.training.OnArrival(stop)])
    resumed = run(checkpoint=path)
    assert same(straight.state, resumed.state)
    assert straight.history.equals(resumed.history)
    assert straight.diverged_at is None
    assert int(straight.state["bn1.num_batches_tracked"]) > 6
    fresh = Cifar10(width=SLIM, weights="none").model(0).state_dict()
    for name in ("conv1.weight", "bn1.running_mean", "layer4.1.bn2.running_var", "fc.bias"):
        assert not torch.equal(straight.state[name], fresh[name])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"width": 0.5}, ValueError, r"'imagenet' with width 0.5 \(expected 'none', a file, or width 1"),
        ({"width": 2, "weights": Path("w.pth")}, ValueError, "Cannot read the weights w.pth"),
        ({"weights": "sha256:12"}, ValueError, "expected 64 hexadecimal digits after 'sha256:'"),
        ({"weights": "sha256:" + "0" * 64}, ValueError, "Cannot read the weights .*0000 .*keep_weights"),
        ({"weights": "none", "frozen_batch_norm": True}, ValueError, "True with weights 'none'"),
        ({"weights": "none", "frozen_batch_norm": 1}, TypeError, "Invalid frozen_batch_norm value: 1"),
        ({"width": 0.0, "weights": "none"}, ValueError, "Invalid width value: 0"),
        ({"width": "wide", "weights": "none"}, TypeError, "Invalid width value: 'wide'"),
        ({"stem": "small"}, ValueError, "Invalid weights value: 'imagenet' with stem 'small'"),
        ({"stem": "large", "weights": "none"}, ValueError, "Invalid stem value: 'large'"),
        ({"split": "train", "weights": "none"}, ValueError, "Invalid split value: 'train'"),
        ({"batch_size": 0, "weights": "none"}, ValueError, "Invalid batch_size value: 0"),
        ({"batch_size": 1, "weights": "none"}, ValueError, "Invalid batch_size value: 1 .*BatchNorm needs two"),
        ({"slow_classes": 5, "weights": "none"}, TypeError, "Invalid slow_classes value: 5"),
        ({"slow_classes": (10,), "weights": "none"}, ValueError, "Invalid slow_class value: 10"),
        ({"slow_classes": range(10), "weights": "none"}, ValueError, "expected some classes, not all"),
        ({"weights": None}, TypeError, "Invalid weights value: None"),
        ({"weights": "absent.pth"}, ValueError, "Cannot read the weights absent.pth"),
    ],
)
def test_bad_arguments(tiny: list[Any], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cifar10(**options)


def test_bad_networks() -> None:
    with pytest.raises(ValueError, match="Invalid num_classes value: 0"):
        ResNet18(num_classes=0)
    with pytest.raises(ValueError, match="Invalid stem value: 'tiny'"):
        ResNet18(stem="tiny")
    with pytest.raises(ValueError, match="Invalid width value: -1"):
        ResNet18(width=-1)


def test_a_batch_of_one_is_enough_behind_the_small_stem(tiny: list[Any]) -> None:
    problem = Cifar10(width=SLIM, weights="none", stem="small", batch_size=1)
    model = problem.model(0)
    loss = problem.loss(model, problem.batch(0, 0))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad.any() for p in model.parameters())
