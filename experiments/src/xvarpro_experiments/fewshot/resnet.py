"""ResNet-18 in Torch for the few-shot experiment: layers 1 to 3 frozen, layer 4 is theta. Weights are the user's."""

from __future__ import annotations

import copy
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from xvarpro.errors import ProblemError
from xvarpro_experiments import datasets
from xvarpro_experiments.datasets import VARIABLE, find
from xvarpro_experiments.fewshot.data import Backbone

WEIGHTS = ("resnet18_imagenet.safetensors", "resnet18.safetensors", "resnet18-f37072fd.safetensors")
IMAGES = 60  # of every class and half whose features are computed
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours, with which the network was trained
_WIDTHS = (64, 64, 128, 256, 512)
_COUNTER = "num_batches_tracked"  # of a BatchNorm layer that is being trained: it decides nothing afterwards


class Block(nn.Module):
    """Two convolutions and what is added to them (He et al. 2016), with torchvision's names."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.downsample(x))


def parts() -> tuple[nn.Module, nn.Module]:
    """ResNet-18 up to layer 3, images (n, 3, s, s) to (n, 256, s/16, s/16); layer 4 and the mean over pixels."""
    layers = {
        f"layer{i}": nn.Sequential(Block(inside, outside, 1 if i == 1 else 2), Block(outside, outside, 1))
        for i, (inside, outside) in enumerate(itertools.pairwise(_WIDTHS), 1)
    }
    last = layers.popitem()
    first = {"conv1": nn.Conv2d(3, 64, 7, 2, 3, bias=False), "bn1": nn.BatchNorm2d(64)}
    trunk = OrderedDict(**first, relu=nn.ReLU(), maxpool=nn.MaxPool2d(3, 2, 1), **layers)
    return nn.Sequential(trunk), nn.Sequential(OrderedDict([last, ("avgpool", nn.AdaptiveAvgPool2d(1))]))


def as_design(module: nn.Module) -> tuple[dict[str, np.ndarray], Callable[[Any, Any], Any]]:
    """Any module of Torch as a design: its parameters are theta.

    Parameters
    ----------
    module : torch.nn.Module
        It is copied, and put into evaluation mode: BatchNorm uses its running statistics, Dropout does nothing.

    Returns
    -------
    theta0 : dict of NumPy arrays
        The parameters by their names.
    features : callable
        ``features(theta, X)``: the module with those parameters, what it returns as a matrix with a row per sample.
        Its theta and X are tensors: solve with ``backend="torch"``.

    Examples
    --------
    >>> import numpy as np, torch, xvarpro as xv
    >>> from xvarpro_experiments import fewshot
    >>> from xvarpro_experiments.fewshot.resnet import as_design
    >>> theta0, features = as_design(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()).double())
    >>> sorted(theta0)
    ['0.bias', '0.weight']
    >>> X, Y = np.eye(8), fewshot.targets(np.arange(8) % 4, 4)
    >>> one, two = fewshot.Split(X[:4], Y[:4]), fewshot.Split(X[4:], Y[4:])
    >>> fit = xv.solve(fewshot.problem(features, one, two, lam=0.1), theta0, backend="torch", max_iter=5)
    >>> bool(fit.value < fit.trace.value[0])
    True
    """
    module = copy.deepcopy(module).eval()
    theta0 = {name: p.detach().cpu().numpy().copy() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())
    if not theta0:
        raise ProblemError(f"a module needs parameters to be a design, and {type(module).__name__} has none")

    def features(theta: Any, X: Any) -> Any:
        fixed = {name: b.to(X if b.is_floating_point() else X.device) for name, b in buffers.items()}
        return torch.func.functional_call(module, {**fixed, **theta}, (X,)).flatten(1)

    return theta0, features


def find_weights(path: str | os.PathLike[str] | None = None, folder: str | os.PathLike[str] | None = None) -> Path:
    """The file of weights that the user names, or one of `WEIGHTS` in `folder` or ``$XVARPRO_DATA``."""
    found = Path(path) if path is not None else find(WEIGHTS, ("", "resnet18"), folder)
    if found is None or not found.is_file():
        raise ProblemError(
            f"no weights of a ResNet-18: {path or ' or '.join(WEIGHTS[:2])} is not in {folder or f'${VARIABLE}'}. They "
            "are not shipped. With torchvision installed, safetensors.torch.save_file("
            "torchvision.models.resnet18(weights='IMAGENET1K_V1').state_dict(), 'resnet18.safetensors') writes them"
        )
    return found


def load(path: str | os.PathLike[str]) -> tuple[nn.Module, nn.Module]:
    """The `parts` of a ResNet-18 from a safetensors file with torchvision's names.

    BatchNorm layers may have statistics of their own or such that are folded into their weights, mean 0 and variance 1.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError("weights need safetensors: pip install safetensors", name="safetensors") from error
    try:
        state = load_file(os.fspath(path))
    except SafetensorError as error:
        raise ProblemError(f"{path} is not a safetensors file: {error}") from error
    found = parts()
    for module in found:
        wanted = [name for name in module.eval().state_dict() if not name.endswith(_COUNTER)]
        try:
            module.load_state_dict({name: state[name].float() for name in wanted}, strict=False)
        except (KeyError, RuntimeError) as error:
            raise ProblemError(f"{path} does not hold a ResNet-18 with torchvision's names: {error}") from error
    return found


def frozen(trunk: nn.Module, images: np.ndarray, size: int, batch: int = 50) -> np.ndarray:
    """What the trunk makes of images, in float32."""
    if size < 32:
        raise ProblemError(f"size must be >= 32 pixels, got {size}")
    mean, std = (torch.tensor(x).reshape(1, 3, 1, 1) for x in (MEAN, STD))
    out = []
    with torch.inference_mode():
        for i in range(0, len(images), batch):
            x = (torch.from_numpy(images[i : i + batch]).float() / 255 - mean) / std
            if size != x.shape[-1]:
                x = functional.interpolate(x, (size, size), mode="bilinear", align_corners=False)
            out.append(trunk(x).numpy())
    return np.concatenate(out)


@lru_cache(maxsize=2)
def backbone(
    folder: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    size: int = 64,
    dtype: Any = np.float32,
) -> Backbone:
    """A ResNet-18 whose layer 4 is theta, and the frozen features of CIFAR-10's test images, computed once."""
    path = find_weights(weights, folder)
    trunk, top = load(path)
    held = datasets.cifar10(folder, train=False)
    chosen = [np.flatnonzero(held.labels == c)[: 2 * IMAGES] for c in range(10)]
    index = np.concatenate(chosen)
    theta0, features = as_design(top)
    return Backbone(
        features,
        {name: x.astype(dtype) for name, x in theta0.items()},
        frozen(trunk, held.images[index], size).astype(dtype),
        held.labels[index],
        np.concatenate([np.arange(len(mine)) % 2 for mine in chosen]),
        f"{held.source}, {len(index)} used, enlarged to {size} x {size}; ResNet-18 from {path.name}",
    )
