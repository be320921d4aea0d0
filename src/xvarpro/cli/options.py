"""Options of several commands, and their checks."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
import typer

from xvarpro import backends
from xvarpro.backends import exchange
from xvarpro.errors import ProblemError

Backend: TypeAlias = Annotated[str, typer.Option(help="Where to compute: see xvarpro backends.")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="Device, such as cpu or cuda:0. Default: the backend's.")]
Dtype: TypeAlias = Annotated[str, typer.Option(help="float64 or float32.")]


def check_backend(name: str, device: str | None = None) -> backends.Backend:
    """The backend, which must be installed and able to compute on the device."""
    backend = backends.get(name)
    try:
        backend.asarray(np.zeros(1), device=None if device is None else exchange.find_device(backend, device))
        return backend
    except Exception as error:  # frameworks raise errors of their own for a missing device or driver
        reason = str(error).partition("\n")[0]
        what = "has no device to compute on" if device is None else f"cannot compute on {device!r}"
        raise ProblemError(f"backend {name!r} {what}: {reason}") from error


def check_dtype(dtype: str) -> str:
    """`dtype`, which must be one that `solve` computes in."""
    if dtype not in ("float64", "float32"):
        raise ProblemError(f"dtype must be float64 or float32; got {dtype!r}")
    return dtype


def listed(names: str) -> list[str]:
    """Names from a list separated by commas, each once."""
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not found:
        raise ProblemError(f"a name, or several with commas, is required; got {names!r}")
    return found


def split(names: str) -> list[str]:
    """Two or more backends from a list separated by commas, each once."""
    found = listed(names)
    if len(found) < 2:
        raise ProblemError(f"two or more backends are required, such as numpy,torch; got {names!r}")
    return found
