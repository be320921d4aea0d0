"""What a solve returns, and how it is kept."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.results.recipe import Recipe
from xvarpro.results.serialization import decode, structure

FORMAT = 2  # of the files; 1 had no recipe


@dataclass(frozen=True)
class Trace:
    """One entry per iterate, the start included; NumPy arrays of length ``n_iter + 1``.

    Attributes
    ----------
    value, gap_A, gap_B : arrays
        Objective of the algorithm and both parts of the gap, at the iterate.
    alpha_A, alpha_B : arrays
        Steps that led to it, per block; 0 at the start.
    seconds : array
        Time since the first iteration began, without set-up and compilation. Where a loop is compiled, the steps of one
        call share its time evenly.
    values, gradients, lmos, projections : arrays
        Work done so far.
    """

    value: np.ndarray
    gap_A: np.ndarray
    gap_B: np.ndarray
    alpha_A: np.ndarray
    alpha_B: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    lmos: np.ndarray
    projections: np.ndarray
    seconds: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """The gap of the whole step, ``gap_A + gap_B``."""
        return self.gap_A + self.gap_B


@dataclass(frozen=True)
class Verified:
    """What was measured at the point that is returned.

    Attributes
    ----------
    violation : float
        Largest violation of a set, relative to its size.
    condition : float
        Condition number of the matrix that the lower-level solver factored, its columns scaled to length 1, so that
        the units of the unknowns do not count; as it is for `SVD`, whose minimum norm is a choice of units. The
        gradient's relative error is at most about this times the machine epsilon. inf where the solver gave up.
    units, dead_units : int
        Columns of the lower design and those that are exactly zero: atoms or latents that contribute nothing, have zero
        gradient and never come back. -1 for a design that is not held as an array.
    kinks : int
        Weights at a bound whose multiplier is 0 to working precision: there w has derivatives to each side that differ.
        So has the gradient of a bilevel problem; that of a separable one is continuous all the same.
    lower_residual : float
        Relative residual that an iterative lower-level solver left, of w and of the adjoint; 0 for a direct one.
    gradient_error : float
        Estimate of the Euclidean norm of the gradient's error that comes of it; the gap counts it. 0 for a direct one.
    """

    violation: float
    condition: float
    units: int
    dead_units: int
    kinks: int = 0
    lower_residual: float = 0.0
    gradient_error: float = 0.0


@dataclass(frozen=True)
class Counts:
    """Work of a solve: objective values, gradients, calls of the LMO, projections, factorisations."""

    values: int
    gradients: int
    lmos: int
    projections: int
    factorisations: int


@dataclass(frozen=True)
class Result:
    """Outcome of `solve`.

    Attributes
    ----------
    theta : pytree of arrays
        In theta0's structure, framework and device.
    value : float
        Reduced objective at theta.
    gap_A, gap_B : float
        Frank-Wolfe gap of the constrained block; dual norm of the free block's gradient times the radius of its ball.
    status : Status
    n_iter : int
    counts : Counts
    trace : Trace
    verified : Verified
    algorithm : str
        As it was run, defaults included.
    provenance : dict
        Backend, device, dtype, versions, precision switches, processor and threads, and whether the backend was held to
        the same bits. ``["exchange"]`` says which arrays came from where: of those in ``"torch to jax"`` so many were
        shared, which are never written to, and so many copied.
    seconds, setup_seconds : float
        Time in the iterations, and before them (moving data, compressing, compiling).
    """

    theta: Tree
    value: float
    gap_A: float
    gap_B: float
    status: Status
    n_iter: int
    counts: Counts
    trace: Trace
    verified: Verified
    algorithm: str
    provenance: dict[str, Any]
    seconds: float
    setup_seconds: float
    _weights: Callable[[], Iterator[Array]] | None = field(default=None, repr=False, compare=False)
    _w: Array | None = field(default=None, repr=False, compare=False)
    _recipe: Callable[[], Recipe] | None = field(default=None, repr=False, compare=False)

    @property
    def gap(self) -> float:
        """``gap_A + gap_B``."""
        return self.gap_A + self.gap_B

    @property
    def success(self) -> bool:
        """Whether the tolerance was met."""
        return self.status.success

    @property
    def w(self) -> Array:
        """The eliminated variable at theta, shape (n,) or (n, k), for the target as it was given; computed when asked.

        Where the target was compressed, all k columns are solved for here; `w_chunks` yields them in blocks.
        """
        if self._w is not None:
            return self._w
        blocks = list(self.w_chunks())
        w = blocks[0] if len(blocks) == 1 else trees.array_namespace(blocks[0]).concat(blocks, axis=1)
        object.__setattr__(self, "_w", w)
        return w

    def w_chunks(self) -> Iterator[Array]:
        """`w` in blocks of columns: the chunks of a `ColumnChunks` target, else about as many columns as M has rows."""
        if self._weights is None:
            raise ProblemError("this result was loaded from a file, which keeps w as a whole: use .w")
        return self._weights()

    @property
    def recipe(self) -> Recipe | None:
        """What the solve was asked for, so that it can be done again; None of a file that has none. See `verify`."""
        return None if self._recipe is None else self._recipe()

    @property
    def message(self) -> str:
        """The status as a sentence."""
        return self.status.sentence

    def __str__(self) -> str:
        v, c = self.verified, self.counts
        inexact = f"lower residual {v.lower_residual:.1e}, gradient error {v.gradient_error:.1e} (estimated)"
        lines = [
            f"{self.status.name}: {self.message}",
            f"  objective   {self.value:.10g}",
            f"  gap         {self.gap_A:.3g} (constrained), {self.gap_B:.3g} (free)",
            f"  iterations  {self.n_iter} in {self.seconds:.3g} s (set-up {self.setup_seconds:.3g} s)",
            f"  work        {c.values} values, {c.gradients} gradients, {c.lmos} LMOs, {c.projections} projections",
            f"  verified    violation {v.violation:.1e}, condition {v.condition:.1e}",
            f"              {v.dead_units} of {v.units} columns of M(theta) are zero",
            *([f"              {inexact}"] if v.lower_residual else []),
            f"  algorithm   {self.algorithm}",
            f"  computed    {', '.join(f'{k} {x}' for k, x in self.provenance.items() if not isinstance(x, dict))}",
        ]
        if v.kinks:
            lines.insert(-2, f"              {v.kinks} weights at a bound have a multiplier of zero")
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Objective and gap against iterations, log scale.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure if None.

        Returns
        -------
        matplotlib Axes
        """
        from xvarpro.results.plotting import plot_trace  # matplotlib is optional

        return plot_trace(self, ax)

    def save(self, path: str | PathLike[str], problem: str | None = None) -> None:
        """Write everything to one ``.npz`` file, without pickle: what `verify` needs to do it again included.

        Parameters
        ----------
        path : path
        problem : str, optional
            A function without arguments that returns ``(problem, theta0)`` or ``(problem, theta0, over)``, by its name:
            ``package.module:function`` or ``file.py:function``. Functions are not kept in the file; this finds them.

        Raises
        ------
        ProblemError
            theta is a tree of something else than dicts, lists, tuples and arrays.

        Examples
        --------
        >>> import os, tempfile, numpy as np, xvarpro as xv
        >>> t = np.linspace(0.0, 1.0, 9)[:, None]
        >>> fit = xv.solve(xv.separable(lambda theta, t: t**theta, t[:, 0], data=t), np.array([2.0]))
        >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
        >>> fit.save(path, problem="mine.py:powers")
        >>> xv.Result.load(path).recipe.problem
        'mine.py:powers'
        """
        arrays = {f"theta_{i}": to_numpy(x) for i, x in enumerate(trees.leaves(self.theta))}
        arrays |= {f"trace_{f.name}": getattr(self.trace, f.name) for f in fields(Trace)}
        recipe = self.recipe
        if recipe is not None and problem is not None:
            recipe = replace(recipe, problem=problem)
        meta = {
            "format": FORMAT,
            "tree": structure(self.theta),
            "recipe": None if recipe is None else recipe.write(arrays),
            "status": self.status.name,
            "counts": asdict(self.counts),
            "verified": asdict(self.verified),
            **{k: getattr(self, k) for k in _PLAIN},
        }
        arrays["w"] = to_numpy(self.w)
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Result:
        """Read what `save` wrote, in this version or an earlier one; arrays come back as NumPy's.

        Raises
        ------
        ProblemError
            It is no such file, or a later version wrote it.
        """
        try:
            with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
                arrays = dict(file)
            meta = json.loads(str(arrays.pop("meta")))
            written = meta["format"]
        except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ProblemError(f"{os.fspath(path)} is not a file that Result.save wrote") from error
        if written > FORMAT:
            raise ProblemError(
                f"{os.fspath(path)} has format {written}, and this version reads up to {FORMAT}: use a newer xvarpro"
            )
        kept = meta.get("recipe")
        trace = Trace(**{f.name: arrays[f"trace_{f.name}"] for f in fields(Trace)})
        return cls(
            theta=decode(meta["tree"], "theta", arrays),
            status=Status[meta["status"]],
            counts=Counts(**meta["counts"]),
            trace=trace,
            verified=Verified(**meta["verified"]),
            _w=arrays["w"],
            _recipe=None if kept is None else lambda: Recipe.read(kept, arrays),
            **{k: meta[k] for k in _PLAIN},
        )


_PLAIN = ("value", "gap_A", "gap_B", "n_iter", "algorithm", "provenance", "seconds", "setup_seconds")
