"""Where and with what a result was computed."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xvarpro import backends
from xvarpro._version import __version__
from xvarpro.backends import Backend
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG")
_CPUS = Path("/proc/cpuinfo")


def provenance(backend: Backend, theta: Array, **more: object) -> dict[str, Any]:
    """Backend, device and dtype of an array, `more` entries, versions, processor and threads, as JSON types."""
    device = device_of(theta)
    held = backends.is_deterministic(backend)
    unpromised = list(backend.nondeterministic_operations(device)) if held else []
    return {
        "xvarpro": __version__,
        "backend": backend.name,
        "device": str(device),
        "dtype": dtype_name(theta),
        **more,
        "framework": backend.describe(),
        "host": _host(),
        "determinism": {"held": held, "unpromised": unpromised},
    }


def alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two provenances promise the same bits: equal but for where the arrays came from, nothing excepted."""
    computed = [{key: x for key, x in found.items() if key != "exchange"} for found in (first, second)]
    promises = not any(found["determinism"]["unpromised"] for found in computed)
    return promises and computed[0] == computed[1]


def check(stored: Mapping[str, Any]) -> None:
    """Refuse a provenance from a file that lacks what a verification reads."""
    match stored:
        case {
            "backend": str(),
            "device": str(),
            "dtype": "float32" | "float64",
            "determinism": {"held": bool(), "unpromised": list()},
        }:
            return
    raise ProblemError("its provenance must have a backend, a device, a dtype and whether the solve was deterministic")


def _host() -> dict[str, Any]:
    """Processor, system, number of CPUs and the variables that libraries read their number of threads from."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        **{name: os.environ.get(name, "unset") for name in _THREADS},
    }


@cache
def _processor() -> str:
    """Model of the processor: linear algebra chooses its kernels, and with them the rounding, by it."""
    if _CPUS.is_file():
        for line in _CPUS.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
