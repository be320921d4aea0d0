"""Solves of arrays sharded over eight devices of one process are those of whole ones."""

import tempfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import M, Y, bilevel, both, box, close, columns, on, refused, rng, rows, start, t, y

import xvarpro as xv
from xvarpro.driver.prepare import prepare

auto = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
explicit = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)


def agrees(problem, w_spec, mesh, over=box, theta0=start, **options):
    one = xv.solve(problem(None), theta0, over=over, **options)  # of NumPy
    fit = xv.solve(problem(mesh), jnp.asarray(theta0), over=over, **options)
    assert (fit.status, fit.n_iter) == (one.status, one.n_iter)
    close(fit.theta, one.theta)
    close(fit.w, one.w)
    close(fit.value, one.value)
    assert fit.theta.sharding.is_equivalent_to(NamedSharding(mesh, P()), fit.theta.ndim)
    assert fit.w.sharding.is_equivalent_to(NamedSharding(mesh, P(*w_spec)), fit.w.ndim)
    assert fit.w.sharding.mesh == fit.theta.sharding.mesh == mesh
    return fit, one


def slopes_agree(problem, mesh):
    value, slope = xv.value_and_gradient(problem(mesh), jnp.asarray(start))
    want, want_slope = xv.value_and_gradient(problem(None), start)
    close(value, want)
    close(slope, want_slope)


def programs():
    # of the loop
    kept = xv.backends.get("jax")._cache
    return [f._cache_size() for (key, _), f in kept.items() if isinstance(key[0], tuple) and key[0][0] == "step"]


fit, one = agrees(rows, (), explicit)
assert programs() == [1]
assert fit.fitted.sharding.spec[0] == "i"
close(fit.residuals, one.residuals)
close(fit.statistics().theta_stderr, one.statistics().theta_stderr)
folder = tempfile.mkdtemp()
fit.save(folder + "/fit.npz")
close(xv.Result.load(folder + "/fit.npz", like=fit.theta).theta, one.theta)
slopes_agree(partial(rows, lam=1e-3), explicit)
agrees(bilevel, (), auto)
agrees(partial(columns, compress=False), (None, "i"), auto)
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

# a QR by parts is one: of a matrix whose rows the devices do not divide, too; a wide one is gathered
backend = prepare(rows(auto), jnp.asarray(start)).backend
for shape in ((64, 3), (67, 3), (5, 3), (64, 64)):
    A = rng.normal(size=shape)
    with backend.scope("float64"):
        Q, R = jax.jit(backend.qr)(A)
        _, triangle = jax.jit(partial(backend.qr, mode="r"))(A)
    close(Q @ R, A)
    close(Q.T @ Q, np.eye(shape[1]))
    close(np.abs(triangle), np.abs(R))
L = xv.compress(on(explicit, np.tile(Y, (1, 8)), None, "i"))
close(L @ L.T, 8 * Y @ Y.T)

# what does not fit together
other = Mesh(np.array(jax.devices()[:2]), ("i",))
stray = xv.separable(M, on(auto, y, "i"), data={"t": on(other, t, "i")})
with refused("sharded arrays must lie on one mesh; got y on"):
    xv.solve(stray, jnp.asarray(start))
with refused("a batch of problems needs arrays that lie on one device each"):
    xv.multistart(rows(auto), jnp.asarray(np.stack([start, start])), over=box)
value, _ = xv.value_and_gradient(rows(auto), jnp.asarray(start), device="cpu:1")  # gets everything
close(value, xv.value_and_gradient(rows(None), start)[0])
bad = y.copy()
bad[3] = np.nan
with refused("y must be finite; got NaN or inf at index [3]"):
    xv.solve(xv.separable(M, on(explicit, bad, "i"), data={"t": t}), jnp.asarray(start))
