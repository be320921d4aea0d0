"""
A compiled pipeline in JAX, with error bars
===========================================

Raw readings go through a correction for the background, a fit and a conversion to half-lives: which samples decide a
half-life, and how much noise reaches it? The pipeline is one function under ``jit`` and ``vmap``, and its gradient
answers both. The figure shows that gradient over time, and 400 half-lives next to the spread that the gradient
predicts.
"""

# %%
# Readings are two decays on a background, under noise; the first 20 samples come before the start and show the
# background alone.

import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

before, t = jnp.linspace(-1.0, -0.05, 20), jnp.linspace(0.0, 4.0, 80)
true, sigma = np.log(2.0) / 0.6, 0.01
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
    """Of the slower decay, in seconds: subtract the background, fit, convert."""
    y = reading[20:] - jnp.mean(reading[:20])
    return jnp.log(2.0) / fit({"t": t, "y": y}).theta[0]


# %%
# The pipeline is written for one reading. ``vmap`` takes it over all of them, and ``jit`` compiles it.

pipeline = jax.jit(jax.vmap(half_life))
found = pipeline(readings)
began = time.perf_counter()
jax.block_until_ready(pipeline(readings))
print(f"{len(found)} half-lives, once compiled: {1000 * (time.perf_counter() - began):.0f} ms")

# %%
# Independent noise of the size sigma in every sample moves a half-life by sigma times the length of its gradient. One
# gradient, at the mean reading, is enough here. (``vmap`` takes gradients, too; that program takes longer to compile.)

gradient = jax.jit(jax.grad(half_life))(readings.mean(axis=0))
error = sigma * jnp.linalg.norm(gradient)
print(f"half-life {found.mean():.3f} s on average, true {true:.3f} s")
print(f"spread of the half-lives {found.std():.4f} s, predicted by the gradient {error:.4f} s")

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
left.axhline(0.0, color="0.6", linewidth=1)
left.plot(before, gradient[:20], color="#d55e00")
left.plot(t, gradient[20:], color="#0072b2")
left.text(-0.08, -0.21, "background", color="#d55e00", ha="right", va="bottom")
left.text(1.9, 0.11, "decays", color="#0072b2", ha="right")
left.set(xlabel="time of the sample (s)", ylabel="change of the half-life / reading (s)")
left.set_title("What each sample does to the half-life")
bins = true + float(error) * np.linspace(-4.0, 4.0, 33)
right.hist(found, bins=bins, color="#56b4e9", density=True)
right.plot(bins, np.exp(-0.5 * ((bins - true) / error) ** 2) / (error * np.sqrt(2 * np.pi)), color="k")
right.text(true + 1.2 * error, 0.8 * 0.4 / error, "predicted", color="k")
right.set(xlabel="half-life (s)", ylabel="density (1/s)", title="400 fits spread as the gradient predicts")
plt.show()
