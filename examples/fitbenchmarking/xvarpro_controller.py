"""Implements a controller for xvarpro, which eliminates the linear parameters."""

from typing import ClassVar

import numpy as np
from fitbenchmarking.controllers.base_controller import Controller

import xvarpro as xv


class XvarproController(Controller):
    """
    Controller for xvarpro.

    ``varpro`` finds the parameters in which residuals are linear, and fits the
    others, with those solved for at every step. ``lm`` is the same method,
    Levenberg-Marquardt, for all parameters.
    """

    algorithm_check: ClassVar = {
        "all": ["varpro", "lm"],
        "ls": ["varpro", "lm"],
        "deriv_free": [],
        "general": [],
        "simplex": [],
        "trust_region": ["varpro", "lm"],
        "levenberg-marquardt": ["varpro", "lm"],
        "gauss_newton": [],
        "bfgs": [],
        "conjugate_gradient": [],
        "steepest_descent": [],
        "global_optimization": [],
        "MCMC": [],
    }

    jacobian_enabled_solvers: ClassVar = ["varpro", "lm"]

    support_for_bounds = True

    def __init__(self, cost_func):
        """
        Initialises variables used for temporary storage.

        :param cost_func: Cost function object selected from options.
        :type cost_func: subclass of
                :class:`~fitbenchmarking.cost_func.base_cost_func.CostFunc`
        """
        super().__init__(cost_func)
        self._linear = None
        self._start = None
        self._bounds = None
        self._columns = None
        self._result = None

    def setup(self):
        """Setup problem ready to be run with xvarpro."""
        self._start = np.array(self.initial_params, dtype=float)
        ranges = self.value_ranges or [(-np.inf, np.inf)] * len(self._start)
        self._bounds = np.array(ranges, dtype=float).T
        self._linear = self._find_linear() if self.minimizer == "varpro" else []
        self._columns = _Columns(self.cost_func, self._start, self._linear)

    def _find_linear(self):
        """
        The parameters in which residuals are affine, together: second
        differences vanish there to rounding.
        """
        rng, found = np.random.default_rng(0), []
        for j in range(len(self._start)):
            step, trial = np.zeros((2, len(self._start))), [*found, j]
            step[:, trial] = rng.uniform(0.1, 0.3, (2, len(trial)))
            step *= np.where(self._start == 0, 1.0, np.abs(self._start))
            a, b = step
            with np.errstate(all="ignore"):
                r = [np.asarray(self.cost_func.eval_r(self._start + d)) for d in (0 * a, a, b, a + b, 2 * a)]
            size = 1e-11 * np.max(np.abs(r)) if np.isfinite(r).all() else 0
            mixed, twice = r[3] - r[1] - r[2] + r[0], r[4] - 2 * r[1] + r[0]
            if size and np.max(np.abs([mixed, twice])) < size:
                found = trial
        # one is kept, for there must be something to iterate on
        return found[: len(self._start) - 1]

    def fit(self):
        """Run problem with xvarpro."""
        columns, linear = self._columns, self._linear
        theta0 = np.delete(self._start, linear)
        over = xv.sets.Box(*np.delete(self._bounds, linear, axis=1))
        if not linear:
            self._result = xv.least_squares(_residual, theta0, over, data={"of": columns}, tol=1e-9)
            return
        lower, upper = self._bounds[:, linear]
        free = np.isinf(lower).all() and np.isinf(upper).all()
        problem = xv.separable(
            _design,
            _target,
            data={"of": columns},
            W=None if free else xv.lower.Bounded(lower, upper),
        )
        self._result = xv.solve(problem, theta0, over, tol=1e-9)

    def cleanup(self):
        """
        Convert the result to a numpy array and populate the variables results
        will be read from.
        """
        status = self._result.status
        limit = status is xv.Status.MAX_ITER
        self.flag = 0 if status.success else 1 if limit else 2
        w = self._result.w if self._linear else None
        self.final_params = self._columns.parameters(self._result.theta, w)
        self.func_evals = self._result.counts.values
        self.iteration_count = self._result.n_iter


class _Columns:
    """
    Residuals as a matrix (m, 1 + n): those without the linear parameters, and
    the change by each of them.
    """

    def __init__(self, cost_func, start, linear):
        self.cost_func, self.linear = cost_func, linear
        self.rest = [j for j in range(len(start)) if j not in linear]
        self._last = {}

    def parameters(self, theta, w=None):
        """All parameters, with the linear ones at w."""
        x = np.zeros(len(self.rest) + len(self.linear))
        x[self.rest] = theta
        x[self.linear] = 0.0 if w is None else w
        return x

    def _at(self, of, theta, pick):
        """
        What a function of all parameters has for w = 0, and its changes; the
        design and the target ask for the same.
        """
        key = of.__name__, theta.tobytes()
        if self._last.get("key") != key:
            units = np.eye(len(self.linear))
            zero = pick(of(self.parameters(theta)))
            ones = [pick(of(self.parameters(theta, w))) - zero for w in units]
            value = np.stack([zero, *ones], axis=1)
            self._last = {"key": key, "value": value}
        return self._last["value"]

    def __call__(self, theta):
        return self._at(self.cost_func.eval_r, theta, np.asarray)

    def jacobian(self, theta):
        """Its derivative, (m, 1 + n, p)."""
        return self._at(self.cost_func.jac_res, theta, lambda J: np.asarray(J)[:, self.rest])


def _both(theta, data):
    return xv.special.external(data["of"], theta, data["of"].jacobian)


def _residual(theta, data):
    return _both(theta, data)[:, 0]


def _design(theta, data):
    return _both(theta, data)[:, 1:]


def _target(theta, data):
    return -_both(theta, data)[:, 0]
