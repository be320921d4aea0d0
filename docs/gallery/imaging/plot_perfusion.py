"""
Diffusion and perfusion: a fraction that may be zero
====================================================

Blood in capillaries moves ten times as fast as water in tissue, so that the signal of a diffusion-weighted image falls
by two exponentials: which voxels are perfused, and how strongly? Where the data show one component only, the other one
ends at zero, and the fit says so. The figure shows the fraction of perfused water and the voxels where it is closed.
"""

# %%
# A liver with a lesion that has no blood, 16 b-values, and the noise of a clinical scan.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
size, sigma = 96, 0.015
b = np.array([0, 10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 600, 700, 800]) / 1000  # ms / um^2
row, column = (2 * np.mgrid[0:size, 0:size] + 1) / size - 1
organ = (row / 0.8) ** 2 + (np.abs(column) / 0.9) ** 2.6 < 1 + 0.2 * column
lesion = np.hypot(row + 0.15, column - 0.3) < 0.28
fraction = np.where(lesion, 0.0, 0.22 + 0.08 * column)
tissue = np.where(lesion, 1.6, 1.0)  # um^2 / ms
signal = fraction[..., None] * np.exp(-15.0 * b) + (1 - fraction[..., None]) * np.exp(-tissue[..., None] * b)
measured = 500 * (signal + sigma * rng.normal(size=signal.shape))

# %%
# Two amplitudes, both nonnegative: the fraction is one of them over their sum, so that it stays between 0 and 1 without
# a constraint of its own, and the unknown brightness of a voxel is theirs. Diffusivities lie in boxes that do not
# overlap.


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-theta[:, None, :] * data["b"][:, None])


y = measured[organ]
weights = np.full(b.size, (500 * sigma) ** -2)
problem = xv.separable(M, y, data={"b": b}, weights=weights, W=xv.lower.Nonnegative())
theta0 = np.tile([10.0, 1.0], (len(y), 1))
fits = xv.solve_many(problem, theta0, over=xv.sets.Box([4.0, 0.2], [60.0, 3.0]))
print(fits)
print(fits.statistics())

# %%
# Voxels whose fast component has ended at zero, against those that have none. In tissue without blood noise lies on
# either side: at one diffusivity half of these voxels would be closed. Some of the others find one between its bounds
# that fits their noise, so that it is 31 %; the rest shows how large a fraction noise alone can feign.

fast, slow = fits.w.T
found, closed = fast / (fast + slow), fast == 0
without = fraction[organ] == 0
print(
    f"closed: {np.mean(closed[without]):.0%} of the voxels without blood, {np.mean(closed[~without]):.1%} of the others"
)
print(f"median fraction: {np.median(found[without]):.3f} without blood, {np.median(found[~without]):.3f} with it")


def image(values):
    shown = np.full((size, size), np.nan)
    shown[organ] = values
    return shown


figure, (truth, maps, scatter) = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=[1, 1, 1.1])
for ax, values, title in ((truth, fraction[organ], "The truth"), (maps, found, f"{len(y):,} fits; closed in red")):
    shown = ax.imshow(image(values), vmin=0.0, vmax=0.4, cmap="viridis")
    figure.colorbar(shown, ax=ax, label="perfused fraction", shrink=0.8)
    ax.set(xticks=[], yticks=[], title=title)
    ax.grid(visible=False)
overlay = np.zeros((size, size, 4))
overlay[organ] = np.where(closed[:, None], [0.84, 0.37, 0.0, 1.0], 0.0)
maps.imshow(overlay)
bins = np.linspace(0.0, 0.6, 61)
scatter.hist(found[~without], bins=bins, alpha=0.7, label="with blood")
scatter.hist(found[without], bins=bins, alpha=0.7, label="without")
scatter.set(xlabel="perfused fraction", ylabel="voxels", title="Closed voxels are the first bar")
scatter.legend()
plt.show()
