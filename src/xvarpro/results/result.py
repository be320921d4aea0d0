"""What a solve returns, and its file."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.results.recipe import Recipe
from xvarpro.results.serialization import decode, encode, opaque
from xvarpro.results.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 3  # of the files


@dataclass(frozen=True)
class Verified:
    """Measurements at the theta that is returned.

    Attributes
    ----------
    violation : float
        Largest violation of a set, relative to its size.
    condition : float
        Condition number of the matrix that the lower-level solver factored, with columns scaled to length 1, so that
        it does not depend on the units of w; unscaled for `SVD`, whose minimum-norm solution depends on them. The
        gradient's relative error is at most about this times the machine epsilon. inf if the factorisation failed.
    units, dead_units : int
        Number of columns of the lower design, and of those that are exactly zero: atoms or latents that contribute
        nothing, have zero gradient and stay zero.
    kinks : int
        Number of entries of w at a bound with a multiplier of 0 to working precision. There the one-sided derivatives
        of w differ, and the gradient of a bilevel problem jumps; that of a separable problem is continuous.
    lower_residual : float
        Relative residual of an iterative lower-level solver, the larger of w's and the adjoint's; 0 for a direct one.
    gradient_error : float
        Estimated Euclidean norm of the resulting error of the gradient, which the gap includes; 0 for a direct solver.
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


@dataclass(frozen=True, repr=False)
class Result:
    """Outcome of `solve`.

    Attributes
    ----------
    theta : pytree of arrays
        The best iterate, in theta0's structure, framework and device.
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
        The one that ran, with its parameters.
    provenance : dict
        Backend, device, dtype, versions, precision switches, processor and threads, and whether the solve was
        deterministic. ``["exchange"]`` counts arrays by origin: of ``"torch to jax"`` so many were shared, which are
        never written to, and so many copied.
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
    _recipe: Callable[[], Recipe] = field(repr=False, compare=False)
    _weights: Callable[[], Iterator[Array]] | None = field(default=None, repr=False, compare=False)
    _w: Array | None = field(default=None, repr=False, compare=False)
    _continuation: Callable[[], Any] | None = field(default=None, repr=False, compare=False)  # see driver.checkpoint

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
        """The eliminated variable at theta, shape (n,) or (n, k), for the target as given; computed on first access.

        If the target was compressed, this solves for all k columns; `w_chunks` yields them in blocks.
        """
        if self._w is not None:
            return self._w
        blocks = list(self.w_chunks())
        w = blocks[0] if len(blocks) == 1 else trees.array_namespace(blocks[0]).concat(blocks, axis=1)
        object.__setattr__(self, "_w", w)
        return w

    def w_chunks(self) -> Iterator[Array]:
        """Yield blocks of columns of w: the chunks of a `ColumnChunks` target, else about as many as M has rows."""
        if self._weights is None:
            raise ProblemError(
                "w_chunks needs a result of solve; this one comes from a file, which stores w whole: use .w"
            )
        return self._weights()

    @property
    def recipe(self) -> Recipe:
        """Arguments of the solve, with which `verify` repeats it."""
        return self._recipe()

    @property
    def message(self) -> str:
        """The status as a sentence, and what to do next."""
        return f"{self.status.sentence} {self.status.advice}"

    def __repr__(self) -> str:
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
            lines.insert(-2, f"              {v.kinks} entries of w at a bound have a multiplier of zero")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw objective and gap against iterations, log scale.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Default: those of a new figure.

        Returns
        -------
        matplotlib Axes
        """
        from xvarpro.results.plotting import plot_trace  # matplotlib is optional

        return plot_trace(self.trace, ax)

    def save(self, path: str | PathLike[str], problem: str | None = None) -> None:
        """Write the result and the arguments of the solve to one ``.npz`` file, without pickle.

        Parameters
        ----------
        path : path
        problem : str, optional
            Name of a function without arguments that returns ``(problem, theta0)`` or ``(problem, theta0, over)``:
            ``package.module:function`` or ``file.py:function``. A file cannot store functions; `verify` calls this one.

        Raises
        ------
        ProblemError
            theta holds something other than arrays in dicts with string keys, lists and tuples.

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
        arrays = {f"trace_{f.name}": getattr(self.trace, f.name) for f in fields(Trace)}
        tree, recipe = encode(self.theta, "theta", arrays), self.recipe
        if lost := opaque(decode(tree, "theta", arrays)):
            raise ProblemError(
                "Result.save needs theta as arrays in dicts with string keys, lists and tuples; it holds "
                f"{lost.what}: save its leaves yourself"
            )
        meta = {
            "format": FORMAT,
            "theta": tree,
            "recipe": replace(recipe, problem=problem or recipe.problem).write(arrays),
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
        """Read a file of `save`; arrays come back as NumPy's.

        Raises
        ------
        ProblemError
            The file is none of `save`, or has another format.
        """
        try:
            with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
                arrays = dict(file)
            meta = json.loads(str(arrays.pop("meta")))
            written = meta["format"]
        except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ProblemError(f"{os.fspath(path)} is not a file that Result.save wrote") from error
        if written != FORMAT:
            raise ProblemError(
                f"Result.load reads format {FORMAT}; {os.fspath(path)} has format {written}: "
                "use the version of xvarpro that wrote it"
            )
        return cls(
            theta=decode(meta["theta"], "theta", arrays),
            status=Status[meta["status"]],
            counts=Counts(**meta["counts"]),
            trace=Trace(**{f.name: arrays[f"trace_{f.name}"] for f in fields(Trace)}),
            verified=Verified(**meta["verified"]),
            _w=arrays["w"],
            _recipe=lambda: Recipe.read(meta["recipe"], arrays),
            **{k: meta[k] for k in _PLAIN},
        )


_PLAIN = ("value", "gap_A", "gap_B", "n_iter", "algorithm", "provenance", "seconds", "setup_seconds")
