"""As one_process, for other problems and algorithms: what compiles for longer."""

import tempfile
from functools import partial

import jax
import numpy as np
from comparison import agrees, auto, explicit, slopes_agree
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import bilevel, both, box, close, columns, on, rng, rows, start, t

import xvarpro as xv

folder = tempfile.mkdtemp()
agrees(bilevel, (), auto)
agrees(partial(columns, copies=8), (None, "i"), explicit)
slopes_agree(both, auto)
first_order = xv.algorithms.ProjectedQuasiNewton()
agrees(partial(rows, lam=1e-3, weights=1 + t), (), auto, algorithm=first_order, max_iter=4)
paper = xv.algorithms.FrankWolfe()
ball = dict(over=xv.sets.L1Ball(5.0), theta0=np.array([0.5, 2.0]))
agrees(partial(rows, lam=1e-3, solver=xv.lower.SVD()), (), explicit, algorithm=paper, max_iter=9, **ball)

# theta0 that is sharded, on a mesh that the caller has set: results as it is
atoms, signals = rng.normal(size=(64, 3)) / 8, rng.normal(size=(64, 40))


def dictionary(mesh):
    return xv.separable(lambda theta, data: theta, on(mesh, signals, "i"), lam=1e-2)


options = dict(over=xv.sets.Box(-0.5, 0.5), max_iter=20)
one = xv.solve(dictionary(None), atoms, **options)
with jax.set_mesh(explicit):
    fit = xv.solve(dictionary(explicit), on(explicit, atoms, "i"), **options)
    assert fit.theta.sharding.is_equivalent_to(NamedSharding(explicit, P("i")), 2)
    close(fit.theta, one.theta)
    close(fit.w, one.w)

# going on, from a result and from a file
ridged = rows(explicit, lam=1e-3)
whole = xv.solve(ridged, start, over=box, backend="jax", tol=0.0, max_iter=6)
assert isinstance(whole.theta, np.ndarray)
assert isinstance(whole.w, np.ndarray)
half = xv.solve(ridged, start, over=box, backend="jax", tol=0.0, max_iter=3, checkpoint=folder + "/half.npz")
for again in (
    xv.solve(ridged, half, tol=0.0, max_iter=6),
    xv.solve(ridged, start, over=box, backend="jax", tol=0.0, max_iter=6, resume=folder + "/half.npz"),
):
    assert np.array_equal(again.theta, whole.theta)
    assert again.n_iter == whole.n_iter
