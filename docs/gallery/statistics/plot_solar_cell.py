"""
A solar cell, and a proof that no fit is better
===============================================

Hundreds of papers fit the diode model of a solar cell to the same 26 points, by swarms, bees and evolution, and each
compares its residual with those before. Two of the five parameters enter nonlinearly. With the three currents solved
for, the whole box can be searched, and the search ends with a bound that no parameters go below.
"""

# %%
# Current and voltage of a cell of 57 mm (R.T.C. France, at 33 degrees Celsius; Easwarakhanthan et al., 1986). As in
# those papers, the measured current stands on the right-hand side.

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import differential_evolution

import xvarpro as xv

POINTS = """
    -.2057 .764 -.1291 .762 -.0588 .7605 .0057 .7605 .0646 .76 .1185 .759 .1678 .757 .2132 .757 .2545 .7555
    .2924 .754 .3269 .7505 .3585 .7465 .3873 .7385 .4137 .728 .4373 .7065 .459 .6755 .4784 .632 .496 .573 .5119 .499
    .5265 .413 .5398 .3165 .5521 .212 .5633 .1035 .5736 -.01 .5833 -.123 .59 -.21
"""
V, current = np.array(POINTS.split(), dtype=float).reshape(-1, 2).T
THERMAL = 0.0263819  # volts, of 33 degrees


def M(theta, data):
    """Currents of the light, of the diode and of the shunt, for theta = series resistance, ideality."""
    xp = xv.array_namespace(theta)
    x = data["V"] + data["I"] * theta[0]
    return xp.stack([xp.ones_like(x), 1 - xp.exp(x / (theta[1] * THERMAL)), -x], axis=1)


problem = xv.separable(M, current, data={"V": V, "I": current}, W=xv.lower.Nonnegative())
box = xv.sets.Box(np.array([0.0, 1.0]), np.array([0.5, 2.0]))  # ohm, and a number
fit = xv.solve(problem, np.array([0.03, 1.5]), over=box)
found = fit.certify(within=0.01)


def rms(half_squares):
    return np.sqrt(2 * half_squares / current.size)


print(f"fit:            {rms(fit.value):.6e} A rms, after {fit.trace.values[-1]:.0f} values and gradients")
print(f"proof:          no parameters of the box have less than {rms(found.bound):.4e} A")
print(
    f"series {fit.theta[0]:.5f} ohm, ideality {fit.theta[1]:.4f}, light {fit.w[0]:.5f} A, shunt {1 / fit.w[2]:.2f} ohm"
)

# %%
# What the field does: all five parameters by differential evolution, in the ranges that the papers share.


def squares(p):
    """Of many parameters at once, (5, many)."""
    currents = M(p[:2], {"V": V[:, None], "I": current[:, None]})
    return 0.5 * np.sum((np.einsum("ijk,jk->ik", currents, p[2:]) - current[:, None]) ** 2, axis=0)


ranges = [(0.0, 0.5), (1.0, 2.0), (0.0, 1.0), (0.0, 1e-6), (0.01, 1.0)]
swarm = differential_evolution(
    squares, ranges, seed=0, maxiter=300, tol=0.0, polish=False, vectorized=True, updating="deferred"
)
print(f"evolution:      {rms(swarm.fun):.6e} A rms, after {75 * swarm.nfev:,} values")

# %%
# The model through the data, and the reduced objective: one valley, and where in it the minimum may lie.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6))
left.plot(V, current, "o", color="C6", label="measured")
left.plot(V, M(fit.theta, {"V": V, "I": current}) @ fit.w, label=f"fit, {1e3 * rms(fit.value):.3f} mA rms")
left.set(xlabel="voltage (V)", ylabel="current (A)", title="One diode, 26 points")
left.legend(loc="lower left")
resistance, ideality = np.linspace(0.0, 0.08, 20), np.linspace(1.3, 1.7, 20)
surface = [[xv.solve_lower(problem, np.array([r, n])).value for r in resistance] for n in ideality]
levels = np.geomspace(1.3e-5, 1e-2, 12)
shown = right.contourf(resistance, ideality, surface, levels, norm="log", cmap="viridis", extend="both")
figure.colorbar(shown, ax=right, label="objective", ticks=[1e-4, 1e-3, 1e-2])
lower, upper, _ = found.boxes
right.plot(*found.theta, "w+", markersize=10)
for a, b in zip(lower, upper, strict=True):
    right.add_patch(plt.Rectangle(a, *(b - a), fill=False, edgecolor="w", linewidth=0.6))
right.set(xlabel="series resistance (ohm)", ylabel="ideality", title="The minimum is in the white boxes: proven")
right.grid(visible=False)
plt.show()
