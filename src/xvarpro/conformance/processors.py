"""Processor paths: a backend under the variables that choose its libraries' kernels, each in a process of its own.

The digits of a sum depend on the kernel that a library chooses for the processor, and on the number of threads. A path
is one such choice. It is proven when the process ran with the kernels that the path names, and the suite passed there.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path as File
from typing import Any

import numpy as np

from xvarpro import backends as registry
from xvarpro.conformance.report import Proof, Report
from xvarpro.conformance.runner import DTYPES, run, targets
from xvarpro.errors import ProblemError

THREADS = (1, 2)
COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # the last is XLA's
CHOICES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "MKL_CBWR", "ATEN_CPU_CAPABILITY")
ISA = "--xla_cpu_max_isa="  # one of several flags in XLA_FLAGS
ILLEGAL_INSTRUCTION = (-signal.SIGILL, 0xC000001D)  # exit codes on POSIX and on Windows

AVX512 = ("AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL")


@dataclass(frozen=True)
class Kernels:
    """A choice of kernels.

    Attributes
    ----------
    name : str
    variables : mapping of str to str
        What makes the choice; read when the library loads.
    proof : mapping of str to tuple of str
        Names that `in_use` gives to these kernels.
    features : tuple of str
        Of the processor, which the kernels need, as NumPy names them.
    """

    name: str = "default"
    variables: Mapping[str, str] = field(default_factory=dict)
    proof: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Path:
    """A backend on a choice of kernels, with a number of threads; None where the number does not matter."""

    backend: str
    kernels: Kernels
    threads: int | None = None

    @property
    def name(self) -> str:
        """``backend/kernels/threads``: what ``--path`` takes."""
        return "/".join(str(x) for x in (self.backend, self.kernels.name, self.threads) if x is not None)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the variables of this path and of no other; of ``XLA_FLAGS`` the caller's other flags stay."""
        flags = [flag for flag in base.get("XLA_FLAGS", "").split() if not flag.startswith(ISA)]
        flags += self.kernels.variables.get("XLA_FLAGS", "").split()
        found = {name: value for name, value in base.items() if name not in (*CHOICES, "XLA_FLAGS")}
        found |= {name: str(self.threads) for name in COUNTS if self.threads is not None}
        return {**found, **self.kernels.variables, **({"XLA_FLAGS": " ".join(flags)} if flags else {})}

    def obstacle(self) -> str:
        """Why this machine cannot run the path; empty where it can."""
        if (self.threads or 1) > (cores := os.cpu_count() or 1):
            return f"it needs {self.threads} cores; this machine has {cores}"
        if self.kernels.variables and (machine := platform.machine()) not in ("x86_64", "AMD64"):
            return f"its kernels are for x86-64 processors; this machine is {machine or 'unknown'}"
        missing = [name for name in self.kernels.features if not _features().get(name)]
        return f"the processor has no {', '.join(missing)}" if missing else ""

    def difference(self, found: Mapping[str, str]) -> str:
        """Where the kernels and threads that `in_use` found are not those of the path; empty where they are."""
        wanted = {**self.kernels.proof, **({} if self.threads is None else {"threads": (str(self.threads),)})}
        wrong = {name: right for name, right in wanted.items() if found.get(name) not in right}
        return "; ".join(f"{name} must be {' or '.join(right)}; got {found.get(name)}" for name, right in wrong.items())


def _features() -> Mapping[str, bool]:
    """What the processor has, by NumPy's names, which are older than their public list."""
    from numpy._core._multiarray_umath import __cpu_features__

    found: Mapping[str, bool] = __cpu_features__
    return found


def _core(name: str, *features: str, alias: str = "") -> Kernels:
    return Kernels(name, {"OPENBLAS_CORETYPE": name}, {"OpenBLAS": (name, *filter(None, [alias]))}, features)


def _isa(name: str, *features: str) -> Kernels:
    return Kernels(name, {"XLA_FLAGS": f"{ISA}{name}"}, {"cpu instructions": (name,)}, features)


def _kernels() -> dict[str, tuple[Kernels, ...]]:
    """The choices of every backend whose libraries can be asked."""
    config: Any = np.show_config(mode="dicts")
    simd = config.get("SIMD Extensions", {})
    dispatched = " ".join([*simd.get("found", []), *simd.get("not found", [])])
    return {
        "numpy": (
            Kernels(),
            # OpenBLAS builds for x86-64 leave older kernels out, and give Prescott's the first name of those
            _core("Prescott", alias="Katmai"),
            _core("Sandybridge", "AVX"),
            _core("Haswell", "AVX2", "FMA3"),
            _core("SkylakeX", *AVX512),
            Kernels("baseline", {"NPY_DISABLE_CPU_FEATURES": dispatched}, {"simd": ("baseline",)}),
        ),
        "torch": (
            Kernels(),
            Kernels("MKL-compatible", {"MKL_CBWR": "COMPATIBLE"}, {"mkl": ("COMPATIBLE",)}),
            Kernels("ATen-default", {"ATEN_CPU_CAPABILITY": "default"}, {"cpu capability": ("DEFAULT",)}),
        ),
        "jax": (Kernels(), _isa("SSE4_2"), _isa("AVX2", "AVX2", "FMA3"), _isa("AVX512", *AVX512)),
    }


def paths(names: Iterable[str], only: Sequence[str] = ()) -> list[Path]:
    """Every path of some backends, or those whose name begins with or matches a pattern of `only`.

    A backend of another name has one path, the kernels that it chooses by itself.

    Raises
    ------
    ProblemError
        No path has such a name.
    """
    known = _kernels()
    found = [
        Path(name, kernels, threads)
        for name in names
        for kernels in known.get(name, (Kernels(),))
        for threads in (THREADS if name in known else (None,))
    ]
    for pattern in only:
        if not any(_matches(path, pattern) for path in found):
            raise ProblemError(f"--path must name a processor path; got {pattern!r}; --processors --list shows all")
    return [path for path in found if not only or any(_matches(path, pattern) for pattern in only)]


def _matches(path: Path, pattern: str) -> bool:
    return f"{path.name}/".startswith(f"{pattern}/") or fnmatchcase(path.name, pattern)


def in_use(backend: str) -> dict[str, str]:
    """The kernels and threads that a backend's libraries have chosen in this process, after a product with them."""
    chosen = registry.get(backend)
    x = chosen.asarray(np.ones((64, 64)), dtype="float32")
    chosen.to_numpy(x @ x)  # where the processor lacks an instruction, the process ends here
    look = {"numpy": _openblas, "jax": _xla}.get(backend, dict)
    return {**{name: str(value) for name, value in chosen.describe().items()}, **look()}


def _openblas() -> dict[str, str]:
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    keys = {"OpenBLAS": "architecture", "threads": "num_threads"}
    return {name: " and ".join(sorted({str(pool[key]) for pool in pools})) for name, key in keys.items()}


def _xla() -> dict[str, str]:
    if not (tasks := list(File("/proc/self/task").glob("*/comm"))):  # where threads have no names, what was asked for
        return {"threads": os.environ.get("NPROC", "")}
    return {"threads": str(sum(task.read_text().startswith("tf_XLAEigen") for task in tasks))}


@dataclass(frozen=True)
class Request:
    """What the process of a path runs: the part of the suite, and by how many processes."""

    path: Path
    dtypes: tuple[str, ...] = DTYPES
    only: tuple[str, ...] = ()
    thorough: bool = False
    quick: bool = False
    jobs: int = 1


def prove(request: Request) -> tuple[Proof, Report | None]:
    """Run the suite on a path; what became of the path, and the report where the suite ran."""
    path = request.path
    proof = Proof(path.name, path.kernels.variables, "proven")
    if obstacle := path.obstacle():
        return replace(proof, state="cannot run here", reason=obstacle), None
    with tempfile.TemporaryDirectory() as folder:
        answer = File(folder) / "answer"
        done = subprocess.run(
            [sys.executable, "-c", "from xvarpro.conformance import processors; processors.main()", str(answer)],
            input=pickle.dumps(request),
            env=path.environment(os.environ),
            capture_output=True,
            check=False,
        )
        found, report = pickle.loads(answer.read_bytes()) if answer.exists() else ({}, None)
    proof = replace(proof, kernels=_shown(path, found))
    if done.returncode in ILLEGAL_INSTRUCTION:
        return replace(
            proof, state="cannot run here", reason="the processor lacks an instruction of these kernels"
        ), None
    if done.returncode or not found:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        last = words[-1] if words else f"its process ended with status {done.returncode}"
        return replace(proof, state="failed", reason=last), None
    if difference := path.difference(found):
        return replace(proof, state="not proven", reason=difference), None
    report = replace(report, outcomes=tuple(replace(o, path=path.name) for o in report.outcomes))
    if not any(o.state == "passed" for o in report.outcomes):
        return replace(proof, state="failed" if report.failures else "no case applies"), report
    return replace(proof, state="proven" if report.ok else "failed"), report


def _shown(path: Path, found: Mapping[str, str]) -> str:
    """What is in use of what the paths of a backend choose."""
    names = dict.fromkeys(name for kernels in _kernels().get(path.backend, ()) for name in kernels.proof)
    return ", ".join(f"{name} {found[name]}" for name in (*names, "threads") if name in found)


def main() -> None:
    """The process of a path: a request on standard input, what was found in the file that is the argument."""
    request: Request = pickle.load(sys.stdin.buffer)
    found, report = in_use(request.path.backend), None
    if not request.path.difference(found):
        among = targets([request.path.backend], ["cpu"], request.dtypes, request.thorough, request.quick)
        report = run(among, request.only, jobs=request.jobs)
    File(sys.argv[1]).write_bytes(pickle.dumps((found, report)))


def merged(found: Iterable[tuple[Proof, Report | None]], **known: Any) -> Report:
    """One report of all paths.

    Parameters
    ----------
    found : iterable of (Proof, Report or None)
    **known
        Other fields of the report.
    """
    proofs, reports = zip(*found, strict=True)
    ran = [report for report in reports if report is not None]
    outcomes = tuple(outcome for report in ran for outcome in report.outcomes)
    facts = {name: fact for report in reversed(ran) for name, fact in report.facts.items()}  # of the first path
    return Report(outcomes, facts, processors=tuple(proofs), **known)
