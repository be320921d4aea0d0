"""Solves of arrays sharded over eight devices of one process are those of whole ones."""

import tempfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from comparison import agrees, auto, explicit, slopes_agree
from jax.sharding import Mesh
from problems import M, Y, box, close, columns, on, refused, rng, rows, start, t, y

import xvarpro as xv
from xvarpro.driver.prepare import prepare


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
agrees(partial(columns, compress=False), (None, "i"), auto)

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
