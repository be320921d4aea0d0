"""CIFAR-10 in its binary layout: a byte of label and 3 x 32 x 32 bytes of colour for every image."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro_experiments.datasets._find import VARIABLE, find

_TRAIN, _TEST = tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"
_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True)
class Labelled:
    """Colour images, shape (samples, 3, 32, 32), uint8, with their classes, 0 to 9."""

    images: np.ndarray
    labels: np.ndarray
    source: str


def find_cifar10(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Folder of CIFAR-10's binary files under `folder` or ``$XVARPRO_DATA``, None where there is none."""
    batch = find([_TEST], ("", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"), folder)
    return None if batch is None else batch.parent


def cifar10(folder: str | os.PathLike[str] | None = None, train: bool = True, samples: int | None = None) -> Labelled:
    """The first `samples` images of the training batches that are there, or of the test batch."""
    where = find_cifar10(folder)
    if where is None:
        raise ProblemError(f"no {_TEST} in {folder or f'${VARIABLE}'} or its subfolders: CIFAR-10 in its binary layout")
    paths = [p for name in (_TRAIN if train else (_TEST,)) if (p := where / name).is_file()]
    if not paths:
        raise ProblemError(f"{where} holds no {_TRAIN[0]}")
    records = np.concatenate([_records(path) for path in paths])[:samples]
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    part = "training" if train else "test"
    return Labelled(images, records[:, 0].astype(np.int64), f"CIFAR-10, {len(records)} {part} images")


def _records(path: Path) -> np.ndarray:
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise ProblemError(f"{path} holds {raw.size} bytes, not a whole number of records of {_RECORD}")
    return raw.reshape(-1, _RECORD)
