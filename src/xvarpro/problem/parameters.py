"""Parameters by name: which vary, between what bounds, which are fixed, and which follow from others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.checks import shown
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.problem._parameter import (
    Parameter,
    Tied,
    check_tied_alone,
    entry,
    frozen,
    one_if_equal,
    parameter,
    text,
    tied,
)
from xvarpro.sets import Free
from xvarpro.sets.interface import Set

Numbers: TypeAlias = float | Array | list[Any] | tuple[Any, ...]


class LinearMap(NamedTuple):
    """All parameters as a function of those that vary, ``A z + b``, in NumPy arrays.

    Attributes
    ----------
    A : array, shape (n, p)
        Its columns are the entries of theta, `Parameters.names`.
    b : array, shape (n,)
    names : tuple of str
        Entries of all parameters: the rows.
    """

    A: np.ndarray
    b: np.ndarray
    names: tuple[str, ...]


@final
class Parameters:
    """Named parameters of a fit, from which theta, its sets and its names are made together.

    A model wrapped by `model` is given a dict of all parameters, those that are fixed or tied included, while theta is
    a dict of those that vary alone. `add` and `set` change this object; what `theta0`, `over` and `model` have returned
    before stays as it was.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> p = xv.Parameters()
    >>> p.add("k1", 0.8, min=0.0, max=10.0)
    >>> p.add("omega", 3.0, vary=False)
    >>> p.add("k2", tie={"k1": 4.0}, offset=1.0)
    >>> p
    name   value  min   max  vary   tie
    k1     0.8    0     10   True
    omega  3      -inf  inf  False
    k2     4.2                      4 k1 + 1
    >>> def M(parameters, t):
    ...     xp = xv.array_namespace(parameters)
    ...     t, k = xp.expand_dims(t, axis=1), xp.stack([parameters["k1"], parameters["k2"]])
    ...     return xp.cos(parameters["omega"] * t) * xp.exp(-t * k)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> y = np.cos(3.0 * t) * (2.0 * np.exp(-t) + np.exp(-5.0 * t))
    >>> fit = xv.solve(xv.separable(p.model(M), y, data=t), p.theta0, over=p.over)
    >>> p.at(fit.theta)
    name   value  min   max  vary   tie
    k1     1      0     10   True
    omega  3      -inf  inf  False
    k2     5                        4 k1 + 1
    """

    def __init__(self) -> None:
        self._all: dict[str, Parameter | Tied] = {}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Parameters:
        """Parameters from a dict.

        Parameters
        ----------
        table : mapping of str
            To each name a value, a tuple ``(value, min, max)``, or a dict of arguments of `add`; so a table of pandas
            with a row for each is ``table.to_dict("index")``.

        Raises
        ------
        ProblemError
            As of `add`; or an argument of another name.

        Examples
        --------
        >>> import xvarpro as xv
        >>> xv.Parameters.from_dict({"k1": (0.5, 0.0, 10.0), "k2": 8.0, "omega": {"value": 3.0, "vary": False}})
        name   value  min   max  vary
        k1     0.5    0     10   True
        k2     8      -inf  inf  True
        omega  3      -inf  inf  False
        """
        if not isinstance(table, Mapping):
            raise ProblemError(f"from_dict must be given a dict, got {type(table).__name__}")
        made = cls()
        for name, row in table.items():
            if isinstance(row, tuple):
                if not 1 <= len(row) <= len(_POSITIONS):
                    raise ProblemError(f"{name} must be a tuple ({', '.join(_POSITIONS)}), got {len(row)} entries")
                row = dict(zip(_POSITIONS, row, strict=False))
            row = row if isinstance(row, Mapping) else {"value": row}
            if unknown := [key for key in row if key not in _FIELDS]:
                raise ProblemError(f"{name} must have fields among {', '.join(_FIELDS)}, got {unknown[0]!r}")
            made.add(name, **row)
        return made

    def add(
        self,
        name: str,
        value: Numbers | None = None,
        *,
        min: Numbers | None = None,
        max: Numbers | None = None,
        vary: bool | Array | list[Any] = True,
        over: Set | Free | None = None,
        tie: str | Mapping[str, Numbers] | None = None,
        offset: Numbers | None = None,
    ) -> None:
        """Add a parameter.

        Parameters
        ----------
        name : str
            New, without square brackets, which `names` uses for entries.
        value : float or array
            Start, within the bounds.
        min, max : float or array, optional
            Bounds, which broadcast to the shape of `value`; None is no bound, also in a list.
        vary : bool or array of bool
            False fixes the parameter at `value`; an array fixes the entries where it is False.
        over : Set or Free, optional
            Set of the whole array, such as ``xv.sets.Simplex()``, in the place of bounds.
        tie : str or mapping of str to float or array, in the place of a value
            Makes the parameter ``sum of factor * other + offset``, entry by entry, of parameters added before; a name
            alone makes it equal to that one.
        offset : float or array, optional
            Of a tie; 0 unless given.

        Raises
        ------
        ProblemError
            The name is taken or none, numbers are NaN or do not broadcast, min > max, the value is outside, a tie names
            what is not there, or arguments exclude each other. The message says which and what to write.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> p = xv.Parameters()
        >>> p.add("rates", np.array([0.5, 2.0, 8.0]), min=0.0, vary=[True, False, True])
        >>> p.add("shares", np.full(3, 1 / 3), over=xv.sets.Simplex())
        >>> p.names
        ('rates[0]', 'rates[2]', 'shares[0]', 'shares[1]', 'shares[2]')
        >>> p.over
        {'rates': Box(lower=0.0, upper=inf), 'shares': Simplex(radius=1.0)}
        """
        if not isinstance(name, str) or not name or "[" in name or "]" in name:
            raise ProblemError(f"the name of a parameter must be a string without square brackets, got {name!r}")
        if name in self._all:
            raise ProblemError(f"{name!r} is there already. Change it by set({name!r}, ...), or give another name")
        if tie is None:
            if offset is not None:
                raise ProblemError(f"{name}: offset belongs to a tie, got offset={shown(offset)} without tie=")
            new: Parameter | Tied = parameter(name, value, min, max, vary, over)
        else:
            check_tied_alone(name, value=value, min=min, max=max, over=over, vary=None if vary is True else vary)
            new = tied(
                name,
                {tie: 1.0} if isinstance(tie, str) else tie,
                offset,
                {other: q.shape for other, q in self._all.items()},
            )
        self._all = {**self._all, name: new}

    def set(
        self,
        name: str,
        value: Numbers | None = None,
        *,
        min: Numbers | None = None,
        max: Numbers | None = None,
        vary: bool | Array | list[Any] | None = None,
    ) -> None:
        """Change value, bounds or `vary` of a parameter; what is None stays.

        Parameters
        ----------
        name, value, min, max, vary
            As of `add`; ``min=-np.inf`` removes a bound. The shape stays.

        Raises
        ------
        ProblemError
            There is no such parameter, it is tied, or as of `add`.

        Examples
        --------
        >>> import xvarpro as xv
        >>> p = xv.Parameters.from_dict({"k1": (0.5, 0.0, 10.0), "k2": 8.0})
        >>> p.set("k2", 7.5, vary=False)
        >>> p.names
        ('k1',)
        """
        old = self[name]
        if isinstance(old, Tied):
            raise ProblemError(f"{name} is tied: set the parameters that it is tied to, {', '.join(old.factors)}")
        given = zip((value, min, max, vary), (old.value, old.min, old.max, old.vary), strict=True)
        x, low, high, free = (was if new is None else new for new, was in given)
        changed = parameter(name, x, low, high, free, old.over)
        if changed.shape != old.shape:
            raise ProblemError(f"{name}: value must keep the shape {old.shape}, got shape {changed.shape}")
        self._all = {**self._all, name: changed}

    def __getitem__(self, name: str) -> Parameter | Tied:
        if name not in self._all:
            raise ProblemError(f"there is no parameter {name!r} among {', '.join(self._all) or 'none'}")
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    # -- what a solve takes --------------------------------------------------------------------------------------------

    @property
    def theta0(self) -> dict[str, np.ndarray]:
        """Starts of what varies, in float64: where only some entries vary, a vector of these."""
        return {name: np.array(q.varying(q.value)) for name, q in self._own() if q.varies}

    @property
    def over(self) -> dict[str, Set | Free]:
        """Sets of what varies within bounds or a set; what is left out is free."""
        return {name: C for name, q in self._own() if q.varies and (C := q.region) is not None}

    def model(self, M: Callable[..., Any]) -> Callable[..., Any]:
        """A function of theta from a function of all parameters.

        Parameters
        ----------
        M : callable
            ``M(parameters, data)``, a design, target or ridge, or ``R(parameters)``; `parameters` is what `values`
            returns.

        Returns
        -------
        callable
            ``M(theta, data)`` or ``R(theta)``, as `separable` and `Level` take it.
        """
        return partial(_called, copy.copy(self), M)

    # -- what comes of a theta -----------------------------------------------------------------------------------------

    def values(self, theta: Tree = None) -> dict[str, Array]:
        """All parameters by name, those that are fixed or tied included: a pure function of theta.

        Parameters
        ----------
        theta : dict of arrays, optional
            As `theta0`, such as ``fit.theta``, of any framework; None is the start. Leaves may have leading axes, the
            same ones, as in a batch of `solve_many`.

        Returns
        -------
        dict of arrays
            Of theta's framework, device and dtype, in the order in which parameters were added, with its leading axes.

        Raises
        ------
        ProblemError
            theta has other keys or shapes than `theta0`.

        Examples
        --------
        >>> import xvarpro as xv
        >>> p = xv.Parameters.from_dict({"k1": 0.5, "k2": {"tie": "k1", "offset": 1.0}})
        >>> {name: float(x) for name, x in p.values({"k1": 2.0}).items()}
        {'k1': 2.0, 'k2': 3.0}
        """
        theta = self.theta0 if theta is None else theta
        shapes = {name: q.varying(q.value).shape for name, q in self._own() if q.varies}
        if not isinstance(theta, Mapping) or theta.keys() != shapes.keys():
            got = list(theta) if isinstance(theta, Mapping) else type(theta).__name__
            raise ProblemError(
                f"theta must be a dict with the keys {list(shapes)}, of what varies, got {got}. Where Parameters have "
                "changed since, wrap the model anew"
            )
        leaves = {name: x if is_array(x) else np.asarray(x, dtype=np.float64) for name, x in theta.items()}
        lead = _leading(leaves, shapes)
        like = next(iter(leaves.values())) if leaves else np.zeros(())
        found: dict[str, Array] = {}
        for name, q in self._all.items():
            if isinstance(q, Tied):
                found[name] = q.combined(found, like, lead)
            else:
                found[name] = q.filled(leaves.get(name), like, lead)
        return found

    def at(self, theta: Tree) -> Parameters:
        """Parameters like these that start at a theta, such as a solution: to be printed, changed, solved again.

        What rounding of a solve in float32 moved out of bounds is moved back.
        """
        values, other = self.values(theta), copy.copy(self)
        other._all = dict(self._all)
        for name, q in self._own():
            other._all[name] = replace(q, value=frozen(np.clip(backends.to_numpy(values[name]), q.min, q.max)))
        return other

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries that vary, ``"k1"`` or ``"rates[0]"``, in the order of theta's: parameters by name."""
        entries = {name: [entry(name, at) for at in np.argwhere(q.vary).tolist()] for name, q in self._own()}
        return tuple(trees.leaves(entries))

    def linear_map(self) -> LinearMap:
        """All parameters as a linear function of theta's entries: how errors propagate to those that are tied.

        Returns
        -------
        LinearMap
            ``A z + b`` with z the entries of theta, in the order of `names`; rows in the order of names, too. A
            covariance C of theta's entries gives ``A C A^T`` for all parameters.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> p = xv.Parameters.from_dict({"k1": 0.5, "k2": 8.0, "k3": {"tie": {"k1": 2.0, "k2": -1.0}, "offset": 3.0}})
        >>> A, b, names = p.linear_map()
        >>> names, A[2], b
        (('k1', 'k2', 'k3'), array([ 2., -1.]), array([0., 0., 3.]))
        >>> float(np.sqrt(np.diag(A @ np.diag([0.03, 0.04]) ** 2 @ A.T))[2])  # error of k3
        0.07211102550927978
        """
        leaves, treedef = trees.flatten(self.theta0)
        if not leaves:
            raise ProblemError("linear_map needs a parameter that varies, got none")
        units = trees.unraveled(np.eye(sum(x.size for x in leaves)), tuple(leaves))
        columns = self._homogeneous().values(trees.unflatten(treedef, units))
        offsets = self.values(trees.map_leaves(np.zeros_like, self.theta0))
        entries = {name: [entry(name, at) for at in np.ndindex(q.shape)] for name, q in self._all.items()}
        A: Any = trees.raveled(tuple(trees.leaves(columns)), rows=1).T
        b: Any = trees.raveled(tuple(trees.leaves(offsets)))
        return LinearMap(A, b, tuple(trees.leaves(entries)))

    def __repr__(self) -> str:
        values = self.values()
        table = [("name", "value", "min", "max", "vary", "over", "tie")]
        for name, q in self._all.items():
            table.append((name, text(values[name]), *_cells(q)))
        columns = [column for column in zip(*table, strict=True) if any(column[1:])]
        wide = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        return "\n".join("  ".join(line).rstrip() for line in zip(*wide, strict=True)) or "Parameters()"

    def _own(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters that are not tied."""
        return ((name, q) for name, q in self._all.items() if isinstance(q, Parameter))

    def _homogeneous(self) -> Parameters:
        """These parameters with 0 for what is fixed and for offsets."""
        other = copy.copy(self)
        other._all = {
            name: replace(q, offset=0 * q.offset) if isinstance(q, Tied) else replace(q, value=0 * q.value)
            for name, q in self._all.items()
        }
        return other


_POSITIONS = ("value", "min", "max")
_FIELDS = (*_POSITIONS, "vary", "over", "tie", "offset")


def _called(parameters: Parameters, function: Callable[..., Any], theta: Tree, *data: Tree) -> Any:
    return function(parameters.values(theta), *data)


def _leading(leaves: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The axes that leaves have before those of their parameters, the same for all."""
    name, shape = next(iter(shapes.items()), ("", ()))
    lead = tuple(leaves[name].shape)[: leaves[name].ndim - len(shape)] if shapes else ()
    for name, shape in shapes.items():
        if tuple(leaves[name].shape) != (*lead, *shape):
            raise ProblemError(
                f"theta[{name!r}] must have shape {shape}, after leading axes that all leaves share, got shape "
                f"{tuple(leaves[name].shape)}"
            )
    return lead


def _cells(q: Parameter | Tied) -> tuple[str, str, str, str, str]:
    """min, max, vary, over and tie in the table."""
    if isinstance(q, Tied):
        return "", "", "", "", str(q)
    vary = q.vary if q.varies and not q.vary.all() else q.varies
    if q.over is not None:
        return "", "", text(vary), str(q.over), ""
    return text(one_if_equal(q.min)), text(one_if_equal(q.max)), text(vary), "", ""
