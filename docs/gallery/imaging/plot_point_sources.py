"""
Point sources in an image
=========================

A microscope or a telescope blurs each source into a spot, and counts photons. How many sources are there, and where,
to a fraction of a pixel? Some are nearer to each other than their spots are wide. The figure shows the image with the
sources that were put in and those that were found, one pair of them from near, and how the number was chosen.
"""

# %%
# Twelve sources, four of which have a neighbour at 1.2 to 1.7 spreads of the spot, and a background of 10 counts.

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter

import xvarpro as xv

side, spread, background = 64, 1.6, 10.0
rng = np.random.default_rng(5)
row, column = (axis.ravel() for axis in np.mgrid[:side, :side].astype(float))
alone = np.array([[9, 12], [15, 47], [22, 28], [31, 55], [36, 10], [44, 37], [52, 18], [56, 50]]) + rng.random((8, 2))
angle, apart = rng.uniform(0, 2 * np.pi, 4), spread * np.array([1.2, 1.4, 1.5, 1.7])
near = alone[[0, 2, 3, 6]] + apart[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
true = np.concatenate([alone, near])


def spots(theta, data):
    xp = xv.array_namespace(theta)
    up, across = data["row"][:, None] - theta["row"], data["column"][:, None] - theta["column"]
    return xp.exp(-(up**2 + across**2) / (2 * spread**2))


image = {"row": row, "column": column}
brightness = rng.uniform(60.0, 200.0, len(true))
counts = rng.poisson(spots({"row": true[:, 0], "column": true[:, 1]}, image) @ brightness + background)

# %%
# The atom is one spot, its box the image. Neither a number nor a start is given. The noise of counts is the root of
# what is expected, which a slight blur of the image estimates.

found = xv.find_components(
    spots,
    counts.astype(float),
    {"row": (0.0, side - 1.0), "column": (0.0, side - 1.0)},
    data=image,
    columns=np.ones(side**2),
    weights=1 / gaussian_filter(counts.reshape(side, side).astype(float), 1.0).ravel(),
    W=xv.lower.Nonnegative(),
)
print(found)
places = found.components.places[:, ::-1]  # entries of theta are in the order of their names
distance = np.linalg.norm(true[:, None] - places, axis=2)
errors = np.linalg.norm(found.components.places_stderr, axis=1)[distance.argmin(axis=1)]
missed = distance.min(axis=1)
print(f"{found.n} of {len(true)} sources, off by {missed.max():.2f} pixels at most")
print(f"off by {(missed / errors).max():.1f} standard errors at most")

# %%

figure = plt.figure(figsize=(11.0, 4.0), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[2, 1])
whole, part = left.subplots(1, 2)
for axes in (whole, part):
    axes.imshow(counts.reshape(side, side), cmap="gray_r", origin="lower")
    axes.plot(true[:, 1], true[:, 0], "+", color="#009e73", markersize=9, label="true")
    axes.plot(places[:, 1], places[:, 0], "o", color="#d55e00", fillstyle="none", markersize=9, label="found")
    axes.set(xlabel="column", ylabel="row")
whole.set_title(f"{found.n} sources found, {len(true)} true")
middle = 0.5 * (alone[0] + near[0])
part.set(xlim=middle[1] + np.array([-5, 5]), ylim=middle[0] + np.array([-5, 5]), title="Two sources, 1.2 spreads apart")
part.legend(loc="upper right")
found.plot_choice(figure=right)
plt.show()
