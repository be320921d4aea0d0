"""
A compiled pipeline in JAX, with error bars
===========================================

Raw readings go through a correction, a fit and a conversion to half-lives: which samples decide a half-life, and how
much noise reaches it? The pipeline is one function under ``jit`` and ``vmap``, and its gradient answers both. The
figure shows that gradient over time, and 400 half-lives next to the spread that the gradient predicts.
"""

# %%
# Readings are two decays on a slope that drifts, under noise. The first 20 come before the start and show the drift.

import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

before, t = jnp.linspace(-1.0, -0.05, 20), jnp.linspace(0.0, 4.0, 80)
rates, sigma = np.array([0.6, 4.0]), 0.01
clean = jnp.concatenate([0.0 * before, jnp.exp(-0.6 * t) + jnp.exp(-4.0 * t)]) + 0.3
readings = clean + sigma * jax.random.normal(jax.random.key(0), (400, 100))

# %%
# The fit is a layer: a function of its data, whose gradient comes from implicit differentiation at the solution. The
# amplitudes are eliminated, so that only the two rates need a start. All here is float32, as JAX has it by default.


def design(rate, data):
    xp = xv.array_namespace(rate)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * rate)


problem = xv.separable(design, lambda rate, data: data["y"])
fit = xv.layers.jax.solve(problem, jnp.array([0.3, 6.0]), over=xv.sets.Box(0.01, 20.0), tol=1e-4)


def half_life(reading):
    """Of the slower decay, in seconds: drift away, fit, convert."""
    y = reading[20:] - jnp.mean(reading[:20])
    return jnp.log(2.0) / fit({"t": t, "y": y}).theta[0]


# %%
# ``value_and_grad`` goes through the fit, ``vmap`` takes it over all readings, ``jit`` compiles it once.

pipeline = jax.jit(jax.vmap(jax.value_and_grad(half_life)))
found, gradient = pipeline(readings)
began = time.perf_counter()
jax.block_until_ready(pipeline(readings))
print(f"{len(found)} half-lives with their gradients, once compiled: {time.perf_counter() - began:.2f} s")

# %%
# Independent noise of the size sigma in every sample moves a half-life by sigma times the length of its gradient.

error = sigma * jnp.linalg.norm(gradient, axis=1)
true = np.log(2.0) / 0.6
print(f"half-life {found.mean():.3f} s on average, true {true:.3f} s; spread {found.std():.4f} s")
print(f"predicted by a gradient: {error.mean():.4f} s on average")
print(f"true half-life within two errors: {jnp.mean(abs(found - true) < 2 * error):.1%} of the readings")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
all_times = jnp.concatenate([before, t])
left.axhline(0.0, color="0.6", linewidth=1)
left.plot(before, gradient[:, :20].mean(axis=0), color="#d55e00")
left.plot(t, gradient[:, 20:].mean(axis=0), color="#0072b2")
left.text(-1.0, 0.0, "before the start", color="#d55e00", va="bottom")
left.set(xlabel="time of the sample (s)", ylabel="half-life over reading (s)")
left.set_title("A sample's influence on the half-life")
bins = np.linspace(-4.0, 4.0, 33)
right.hist((found - true) / error, bins=bins, color="#56b4e9", density=True)
right.plot(bins, np.exp(-0.5 * bins**2) / np.sqrt(2 * np.pi), color="k")
right.text(1.3, 0.3, "normal distribution", color="k")
right.set(xlabel="(half-life - true one) / predicted error", ylabel="density")
right.set_title("The errors of 400 fits are as predicted")
plt.show()
