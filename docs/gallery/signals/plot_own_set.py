"""
A set of your own: paths through an image
=========================================

Can a line be followed that drifts through noise? Its position is known to change by one channel at most from one time
to the next: theta is in the hull of all such paths, of which there are far too many to list. A function that finds the
best path for given costs is all that a set needs here; the figure shows the line that it brings out of the noise.
"""

# %%
# Spectra at 60 times with a line that drifts, on two bright peaks that do not, and noise.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(5)
times, channels = 60, 40
channel = np.arange(channels)
track = np.round(20 + 9 * np.sin(np.linspace(0.0, 5.0, times)) + 4 * np.linspace(-1.0, 1.0, times)).astype(int)
peaks = 4 * np.exp(-0.5 * ((channel - 12) / 1.5) ** 2) + 3 * np.exp(-0.5 * ((channel - 31) / 2.0) ** 2)
image = 1.5 * np.eye(channels)[track] + peaks + rng.normal(size=(times, channels))

# %%
# The best path by dynamic programming: backwards the least cost to go from every channel, forwards the path that has
# it. It is written with functions of the array API and without a branch on values, so that it runs on any backend.


def best_path(g):
    """The path with the least sum of the entries of g, as an array of zeros and ones."""
    xp = xv.array_namespace(g)
    wall = xp.full_like(g[..., 0, :1], xp.inf)
    togo = [g[..., -1, :]]
    for i in range(times - 2, -1, -1):
        after = togo[0]
        left, right = xp.concat([wall, after[..., :-1]], axis=-1), xp.concat([after[..., 1:], wall], axis=-1)
        togo.insert(0, g[..., i, :] + xp.minimum(after, xp.minimum(left, right)))
    numbers, rows = xp.arange(channels), []
    near = xp.ones_like(wall, dtype=xp.bool)
    for cost in togo:
        j = xp.argmin(xp.where(near, cost, xp.full_like(cost, xp.inf)), axis=-1, keepdims=True)
        rows.append(xp.astype(numbers == j, g.dtype))
        near = xp.abs(numbers - j) <= 1
    return xp.stack(rows, axis=-2)


paths = xv.sets.Oracle(best_path, width=(2 * times) ** 0.5, ndim=2, vertices=True)

# %%
# The brightest path of the image itself would follow a bright peak. The model knows better: the image is the line, of a
# height between 0.5 and 1.5, on a spectrum that does not change, 40 more weights w that are solved for at every theta.


def M(theta, constant):
    xp = xv.array_namespace(theta)
    return xp.concat([xp.reshape(theta, (-1, 1)), constant], axis=1)


free = np.full(channels, np.inf)
W = xv.lower.Bounded(np.r_[0.5, -free], np.r_[1.5, free])
problem = xv.separable(M, image.ravel(), data=np.tile(np.eye(channels), (times, 1)), W=W)
fit = xv.solve(problem, paths.center(image), over=paths, tol=1e-3)
print(f"{fit.status.name} after {fit.n_iter} iterations, objective {fit.value:.1f} with a gap of {fit.gap:.1f}")

# %%
# theta is a mixture of paths, brightest where most of them agree. Its best path is the estimate of the track.

path, brightest = best_path(-fit.theta) @ channel, np.argmax(image, axis=1)
for name, found in (("brightest channel", brightest), ("path", path)):
    print(f"{name}: off by {np.mean(np.abs(found - track)):.1f} channels on average")
figure, axes = plt.subplots(1, 3, figsize=(9.0, 3.2), sharex=True, sharey=True)
axes[0].imshow(image.T, cmap="gray", aspect="auto", origin="lower")
axes[0].set(title="Where is the third line?", ylabel="channel")
axes[1].imshow(fit.theta.T, cmap="Blues", aspect="auto", origin="lower")
axes[1].set_title("theta, a mixture of paths")
axes[2].plot(brightest, ".", color="0.7", markersize=4)
axes[2].plot(track, "--", color="0.3", linewidth=1)
axes[2].plot(path, color="#0072b2")
axes[2].set_title("Its best path is the track (dashed)")
for ax in axes:
    ax.set_xlabel("time")
    ax.grid(visible=False)
plt.show()
