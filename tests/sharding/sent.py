"""Solves whose compiled programs a test reads: 4096 rows or columns over eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from problems import M, box, on, start

import xvarpro as xv

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
long, short = np.linspace(0.0, 2.0, 4096), np.linspace(0.0, 2.0, 64)
problem = xv.separable(M, on(mesh, np.ones(4096), "i"), data={"t": on(mesh, long, "i")}, lam=1e-3)
xv.solve(problem, jnp.asarray(start), over=box, max_iter=2)
wide = on(mesh, np.ones((64, 4096)), None, "i")
problem = xv.separable(M, wide, data={"t": short}, lam=1e-3, compress=False)
xv.solve(problem, jnp.asarray(start), over=box, max_iter=2)
