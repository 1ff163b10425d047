"""ResNet-18 with torchvision's parameter names, so that published weights load."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from .._util.checks import POSITIVE, whole_number
from .._util.files import atomic
from ..data.store import folders

__all__ = ["BasicBlock", "ResNet18", "keep_weights", "load_weights"]

_FILE = "resnet18-f37072fd.pth"  # ends in the first digits of its SHA-256, as in torch's hub
_COUNTER = "num_batches_tracked"  # a counter of BatchNorm that older files do not have
_HEAD = ("fc.weight", "fc.bias")
_HASH = "sha256:"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut, which is a 1x1 convolution if the shape changes.

    Args:
        inputs: Number of input channels.
        outputs: Number of output channels.
        stride: Stride of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the convolutions and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = nn.functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return nn.functional.relu(self.bn2(self.conv2(inner)).add_(shortcut), inplace=True)


class ResNet18(nn.Module):
    """The residual network of 18 layers: a stem, four layers of two blocks, global average pooling, a linear layer.

    Convolutions are initialised by He's normal distribution with fan-out, BatchNorm with one and zero.

    Args:
        width: Factor of the channels, which are 64, 128, 256 and 512.
        num_classes: Number of logits.
        stem: ``"imagenet"`` halves an image twice before the first block, with a 7x7 convolution and max-pooling;
            ``"small"``, a 3x3 convolution, keeps its size.

    Examples:
        >>> tuple(ResNet18(width=0.125)(torch.zeros(2, 3, 32, 32)).shape)
        (2, 10)
        >>> sum(p.numel() for p in ResNet18(num_classes=1000).parameters())
        11689512
    """

    def __init__(self, width: float = 1.0, num_classes: int = 10, stem: str = "imagenet") -> None:
        super().__init__()
        first = max(1, round(64 * POSITIVE.check("width", width)))
        num_classes = whole_number("num_classes", num_classes, least=1)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, first, 7, stride=2, padding=3, bias=False)
        elif stem == "small":
            self.conv1 = nn.Conv2d(3, first, 3, padding=1, bias=False)
        else:
            raise ValueError(f"Invalid stem value: {stem!r} (expected 'imagenet' or 'small')")
        self.bn1 = nn.BatchNorm2d(first)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = _layer(first, first, stride=1)
        self.layer2 = _layer(first, 2 * first, stride=2)
        self.layer3 = _layer(2 * first, 4 * first, stride=2)
        self.layer4 = _layer(4 * first, 8 * first, stride=2)
        self.fc = nn.Linear(8 * first, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(nn.functional.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs))


def load_weights(model: nn.Module, source: str | os.PathLike[str]) -> tuple[str, ...]:
    """Copy weights from a file into a network: all of them or, if one does not match, none.

    A last layer for another number of classes is ignored, and BatchNorm's counters, which older files do not have, stay
    as they are.

    Args:
        model: The network.
        source: A file with a state dict, by torch or safetensors; ``"imagenet"`` for
            ``checkpoints/resnet18-f37072fd.pth`` in the cache of torch's hub; or ``"sha256:..."`` for a file that
            `keep_weights` has kept. The hash is checked. Nothing is downloaded.

    Returns:
        The names that the file did not set.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "weights.pth"
        ...     torch.save(ResNet18(width=0.125, num_classes=1000).state_dict(), path)
        ...     load_weights(ResNet18(width=0.125, num_classes=10), path)
        ('fc.weight', 'fc.bias')
    """
    state, _ = read_weights(source)
    return fit_weights(model, state, "The ImageNet weights" if source == "imagenet" else str(source))


def read_weights(source: str | os.PathLike[str]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a state dict by name, and the SHA-256 of its file."""
    if not isinstance(source, (str, os.PathLike)) or source == "":
        raise TypeError(f"Invalid weights value: {source!r} (expected 'imagenet', 'none' or the path of a state dict)")
    path = _path_of(os.fspath(source))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(_unreadable(os.fspath(source), path, error)) from error
    digest = hashlib.sha256(content).hexdigest()
    wanted = _FILE.partition("-")[2].partition(".")[0] if source == "imagenet" else _digest_in(os.fspath(source))
    if not digest.startswith(wanted):
        raise ValueError(
            f"{path} is truncated or another file, its SHA-256 starts with {digest[:8]}, not {wanted[:8]}: "
            "download it again, or start from scratch with weights 'none'"
        )
    try:
        if content[8:9] == b"{":  # safetensors: the length of the header, then the header
            state = safetensors.torch.load(content)
        else:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its readers do
        raise ValueError(
            f"{path} is truncated or not a file of weights: download it again, or pass another one"
        ) from error
    return _named_tensors(state, path), digest


def keep_weights(path: Path) -> str:
    """Copy a file of weights to where ``"sha256:..."`` finds it, and return that name.

    The copy is in the folder ``weights`` beside the datasets: in the folder that ``LATECOMER_DATA`` names, or in the
    user's cache. So a run can name its weights by their content, and no path is part of it.
    """
    _, digest = read_weights(path)
    target = folders("weights")[0] / digest
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic(target) as temporary:
            temporary.write_bytes(path.read_bytes())
    return _HASH + digest


def _digest_in(source: str) -> str:
    return source.removeprefix(_HASH) if source.startswith(_HASH) else ""


def _path_of(source: str) -> Path:
    if source == "imagenet":
        return Path(torch.hub.get_dir(), "checkpoints", _FILE)
    if not source.startswith(_HASH):
        return Path(source)
    digest = _digest_in(source)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"Invalid weights value: {source!r} (expected 64 hexadecimal digits after {_HASH!r})")
    places = [folder / digest for folder in folders("weights")]
    return next((place for place in places if place.is_file()), places[0])


def _unreadable(source: str, path: Path, error: OSError) -> str:
    if source == "imagenet":
        return (
            f"There are no ImageNet weights at {path} ({error.strerror}): place {_FILE} there, pass the path of "
            "the file as weights, or start from scratch with weights 'none'"
        )
    remedy = "pass the path of a state dict, or start from scratch with weights 'none'"
    if source.startswith(_HASH):
        remedy = "latecomer.problems.resnet.keep_weights(path) copies a file there"
    return f"Cannot read the weights {path} ({error.strerror}): {remedy}"


def _named_tensors(state: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} is a {type(state).__name__}, not a state dict: save model.state_dict() to it")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{path} is not a state dict, {name!r} is {type(value).__name__}: save model.state_dict() to it"
            )
    return {name: value.detach() for name, value in state.items()}


def fit_weights(model: nn.Module, state: Mapping[str, Tensor], source: str) -> tuple[str, ...]:
    """Copy tensors into a network by name if all match, and return the names that were not set."""
    own = model.state_dict()
    unset = set(_HEAD) if _other_classes(own, state) else set()
    remedy = "pass the state dict of a ResNet-18 of this width and stem, or start from scratch with weights 'none'"
    for name, value in state.items():
        if name not in own:
            raise ValueError(f"{source} does not match: {name} is not a part of this network; {remedy}")
        if name in unset:
            continue
        if value.shape != own[name].shape:
            there, here = tuple(value.shape), tuple(own[name].shape)
            raise ValueError(f"{source} does not match: {name} is {there} there and {here} here; {remedy}")
        if value.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{source} does not match: {name} is of {value.dtype}, not {own[name].dtype}; {remedy}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{source} cannot be used: {name} has a NaN or an infinity; pass another file")
    unset.update(name for name in own if name not in state)
    missing = [name for name in own if name in unset and name not in state and not name.endswith(_COUNTER)]
    if missing:
        raise ValueError(f"{source} does not match: {missing[0]} is missing; {remedy}")
    with torch.no_grad():
        for name, value in own.items():
            if name not in unset:
                value.copy_(state[name])
    return tuple(name for name in own if name in unset)


def _other_classes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Whether the last layer of the file is complete and only for another number of classes."""
    if not all(name in own and name in state for name in _HEAD):
        return False
    weight, bias = (state[name].shape for name in _HEAD)
    classes, features = own["fc.weight"].shape
    return len(bias) == 1 and bias[0] != classes and weight == (bias[0], features)
