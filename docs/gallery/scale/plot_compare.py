"""
One solve on four array libraries
=================================

Does a fit depend on the library that computes it? One problem is solved on NumPy, PyTorch, JAX and array-api-strict
from the same start by the same method, and the iterates are compared step by step. The report says whether all of them
find the same parameters; the figure shows how far apart they are, and how far rounding may take them.
"""

# %%
# The model is written once, with functions of the array API.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv


def M(rates, data):
    xp = xv.array_namespace(rates)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * rates)


t = np.linspace(0.0, 2.0, 200)
y = np.exp(-t) + np.exp(-5.0 * t) + 0.01 * np.random.default_rng(0).normal(size=t.size)
problem = xv.separable(M, y, data={"t": t}, lam=1e-6)
theta0, over = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)

# %%
# The first backend is the reference. The lengths of spectral steps are quotients of differences, which carry every
# rounding on to the next step.

found = xv.compare(
    problem,
    theta0,
    over,
    backends=["numpy", "torch", "jax", "array-api-strict"],
    algorithm=xv.algorithms.SpectralProjectedGradient(),
    max_iter=50,
)
print(found)
for name, fit in found.fits.items():
    print(f"{name:>16}: rates {fit.theta}")

# %%
# The iterates differ by what the method makes of rounding. The report compares objectives and gradients at one and the
# same point, where earlier iterates do not count: more than rounding there would be an error of a library.

figure = plt.figure(figsize=(7, 5))
found.plot(figure=figure)
figure.axes[0].set_title("Iterates agree to what the method makes of rounding")
plt.show()
