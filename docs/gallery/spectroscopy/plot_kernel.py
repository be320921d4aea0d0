"""
A distribution behind a kernel
==============================

Which distances between pairs of spins explain an echo? The echo shows the distribution of distances through a kernel,
on a background that fades at an unknown rate. The distribution is found as nonnegative weights, by the data alone and
with a preference for smooth ones; the figure compares both with the truth.
"""

# %%
# Double electron-electron resonance: pairs at a distance r modulate the echo, averaged over orientations, to a depth
# of 30 %.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

t, r = np.linspace(-0.1, 4.0, 200), np.linspace(2.0, 6.0, 60)  # us, nm
z = (np.arange(1000) + 0.5) / 1000
frequency = 2 * np.pi * 52.04 / r**3
K = np.stack([np.cos((1 - 3 * z**2) * s * frequency[:, None]).mean(axis=1) for s in t])

truth = 0.7 * np.exp(-0.5 * ((r - 3.5) / 0.25) ** 2) + 0.3 * np.exp(-0.5 * ((r - 4.5) / 0.3) ** 2)
truth /= truth.sum()
y = (0.7 + 0.3 * K @ truth) * np.exp(-0.2 * np.abs(t)) + 0.01 * np.random.default_rng(0).normal(size=t.size)

# %%
# The echo is linear in its unmodulated part, the first column, and in the distribution. The rate of the background,
# theta, is not linear. ``Omega`` takes second differences of the distribution, so that the ridge prefers smooth ones;
# the first weight has none.


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-theta * xp.abs(data["t"])[:, None]) * data["columns"]


Omega = np.zeros((61, 61))
Omega[1:, 1:] = np.diff(np.eye(62), 2, axis=0)[:, 1:-1]
data = {"t": t, "columns": np.column_stack([np.ones(t.size), K])}
theta0, over = np.array([0.1]), xv.sets.Box(0.0, 2.0)

plain = xv.separable(M, y, data=data, W=xv.lower.Nonnegative(), lam=1e-8)  # just enough to make it unique
plain = xv.solve(plain, theta0, over=over)
smooth = xv.separable(M, y, data=data, W=xv.lower.Nonnegative(), Omega=Omega, lam=20.0)
fit = xv.solve(smooth, theta0, over=over)
print(plain.status.name, fit.status.name)

# %%
# The depth of the modulation with its error, by propagation through theta and w. The ridge was chosen by
# :func:`xvarpro.statistics.cross_validate`.

s = fit.statistics()
depth = s.propagate(lambda theta, w: 1 - w[0] / xv.array_namespace(w).sum(w))
print(f"background {fit.theta[0]:.3f} +- {s.theta_stderr[0]:.3f} per us, depth {depth.value:.3f} +- {depth.stderr:.3f}")

# %%
# Both fits describe the echo equally well; without the preference the weights are a few spikes.

for name, one in {"data alone": plain, "smooth": fit}.items():
    print(f"{name}: |M w - y| = {np.linalg.norm(one.residuals):.3f}")

figure, (signal, distribution) = plt.subplots(1, 2, figsize=(8.5, 3.2))
signal.plot(t, y, ".", color="0.7", markersize=3)
signal.plot(t, fit.w[0] * np.exp(-fit.theta[0] * np.abs(t)), "--", color="#d55e00", linewidth=1)
signal.plot(t, fit.fitted, color="#0072b2")
signal.annotate("unmodulated part", (0.2, 0.42), color="#d55e00")
signal.set(xlabel="time (µs)", ylabel="echo", title="The echo, and the part that only fades")
step = r[1] - r[0]
spikes, density = (x.w[1:] / x.w[1:].sum() / step for x in (plain, fit))
distribution.vlines(r, 0.0, spikes, color="0.7", linewidth=2)
distribution.plot(r, truth / step, "--", color="0.3", linewidth=1)
distribution.plot(r, density, color="#0072b2")
distribution.annotate("truth", (4.85, 0.42), color="0.3")
distribution.annotate("smooth", (3.15, 1.0), color="#0072b2", ha="right")
distribution.annotate("data alone", (4.7, 2.4), color="0.5")
distribution.set(xlabel="distance (nm)", ylabel="density (1/nm)", title="Smooth weights show both distances")
plt.show()
