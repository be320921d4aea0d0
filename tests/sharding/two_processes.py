"""Two processes with two devices each solve as one: of each the rank, a port and a folder are arguments."""

import sys
import time
from functools import partial

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import AxisType
from problems import M, box, close, columns, on, refused, rows, start, t, y

import xvarpro as xv

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
auto = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
explicit = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
for problem, mesh, sharded in (
    (partial(rows, lam=1e-3), explicit, False),
    (partial(columns, copies=8), auto, True),
):
    one = xv.solve(problem(None), start, over=box)
    fit = xv.solve(problem(mesh), jnp.asarray(start), over=box)
    assert (fit.status, fit.n_iter) == (one.status, one.n_iter)
    close(fit.theta, one.theta)
    assert fit.w.is_fully_replicated is not sharded
    for shard in fit.w.addressable_shards:
        close(shard.data, one.w[shard.index])
    value, slope = xv.value_and_gradient(problem(mesh), start, backend="jax")
    want, want_slope = xv.value_and_gradient(problem(None), start)
    close(value, want)
    close(slope, want_slope)

one = xv.solve(rows(None), start, over=box)
fit = xv.solve(rows(auto), start, over=box, backend="jax")
close(fit.w, one.w)  # NumPy's, as theta0
close(fit.statistics().theta_stderr, one.statistics().theta_stderr)

# each process has a clock of its own; a limit of time and checkpoints by seconds end both after one iteration count
clock = time.perf_counter
time.perf_counter = lambda: clock() * (1 + 9 * rank) + 1e3 * rank
options = dict(over=box, tol=0.0, algorithm=xv.algorithms.FrankWolfe(), backend="jax", max_iter=10**7)
path = f"{folder}/{rank}.npz"
short = xv.solve(rows(auto), start, time_limit=0.5, checkpoint=path, checkpoint_every=0.1, **options)
assert short.status is xv.Status.TIME_LIMIT
counts = multihost_utils.process_allgather(np.int32(short.n_iter))
assert counts[0] == counts[1] > 1, counts
again = xv.solve(rows(auto), start, time_limit=0.2, resume=path, **options)
assert again.n_iter > short.n_iter

# a file names the rows of all processes
shifted = xv.separable(M, on(auto, y + 1, "i"), data={"t": on(auto, t, "i")})
with refused("y has other values"):
    xv.solve(shifted, start, resume=path, **options)
