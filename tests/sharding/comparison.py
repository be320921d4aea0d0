"""What solves of sharded arrays are compared by, on meshes of eight devices."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import box, close, start

import xvarpro as xv

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
