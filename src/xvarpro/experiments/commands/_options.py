"""Options that every experiment takes, and the checks that come before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

from xvarpro import Comparison, backends
from xvarpro.errors import ProblemError
from xvarpro.experiments.race import Experiment, compare

Backend: TypeAlias = Annotated[str, typer.Option(help="Where to compute: see xvarpro backends.")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="Device, such as cpu or cuda:0. Default: the backend's.")]
Dtype: TypeAlias = Annotated[str, typer.Option(help="float64 or float32.")]
Seconds: TypeAlias = Annotated[float, typer.Option(help="Seconds per method; set-up and compilation do not count.")]
Iterations: TypeAlias = Annotated[
    int | None, typer.Option(help="Iterations per method. Default: what the time allows.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of the first start.")]
Repeat: TypeAlias = Annotated[int, typer.Option(help="Starts: this many seeds, one after the other.")]
Units: TypeAlias = Annotated[
    float, typer.Option(help="Factor on the units: the same reduced problem, another one for joint methods.")
]
Out: TypeAlias = Annotated[
    Path, typer.Option(help="Folder for figures, result and summary. A run that was interrupted goes on from there.")
]
Compare: TypeAlias = Annotated[
    str | None, typer.Option(help="Also run the paper's method on these backends, such as numpy,torch,jax.")
]
_COMPARED = 50


def compared(names: str | None, seed: int, iterations: int | None, double: Callable[[], Experiment]) -> Any:
    """The comparison that ``--compare`` asks for, checked now and run when called; None without it.

    Parameters
    ----------
    names : str or None
        Backends, with commas between them.
    seed : int
    iterations : int or None
    double : callable
        The experiment in float64, wherever it computes by default.
    """
    if not names:
        return None
    backends = [check_backend(name).name for name in split(names)]

    def run() -> Comparison:
        return compare(double().task(seed), backends, min(_COMPARED, iterations or _COMPARED))

    return run


def seeds(first: int, repeat: int) -> range:
    """`repeat` seeds from the first on."""
    if repeat < 1:
        raise ProblemError(f"repeat must be >= 1, got {repeat}")
    if first < 0:
        raise ProblemError(f"seed must be >= 0, got {first}")
    return range(first, first + repeat)


def check_backend(name: str, device: str | None = None) -> backends.Backend:
    """The backend, if it is installed and has that device.

    Raises
    ------
    UnknownBackendError, BackendNotInstalledError
    ProblemError
        It cannot compute on the device; the message says which it has.
    """
    backend = backends.get(name)
    try:
        backend.asarray(np.zeros(1), device=None if device is None else backend.parse_device(device))
        return backend
    except Exception as error:  # a framework raises what it likes where a device or its driver is missing
        reason = str(error).partition("\n")[0]
        what = "has no device to compute on" if device is None else f"cannot compute on {device!r}"
        raise ProblemError(f"backend {name!r} {what}: {reason}") from error


def check_dtype(dtype: str) -> str:
    """`dtype`, if a solve can be done in it."""
    if dtype not in ("float64", "float32"):
        raise ProblemError(f"dtype must be float64 or float32, got {dtype!r}")
    return dtype


def split(names: str) -> list[str]:
    """Backends from a list with commas: at least two, each once."""
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if len(found) < 2:
        raise ProblemError(f"two or more backends are needed, such as numpy,torch: got {names!r}")
    return found
