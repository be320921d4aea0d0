"""
Ten thousand fits: the lifetimes of an image
============================================

What is the lifetime of the fluorescence in each pixel of an image? Every pixel has a decay of counts of its own, so
that an image of 100 x 100 pixels is 10,000 fits, which are solved in one batch. The figure shows what a camera sees,
the lifetimes that the fits find, and how they scatter about the true ones.
"""

# %%
# Three cells with lifetimes of their own on a background, dimmer towards their rims; 32 channels of time.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
t = np.linspace(0.0, 12.0, 32)  # ns
row, column = np.mgrid[0:100, 0:100]
lifetime, brightness = np.full((100, 100), 1.2), np.full((100, 100), 40.0)
for i, j, radius, tau in ((30, 32, 24, 3.0), (68, 62, 27, 2.2), (24, 78, 15, 4.0)):
    distance = np.hypot(row - i, column - j) / radius
    lifetime = np.where(distance < 1, tau, lifetime)
    brightness = np.where(distance < 1, 60 + 300 * (1 - distance**2), brightness)
clean = brightness[..., None] * np.exp(-t / lifetime[..., None])
counts = rng.poisson(clean).reshape(10_000, t.size).astype(float)

# %%
# The problem in batch form: theta, one rate per pixel, is (10000, 1), and designs are (10000, 32, 1). Channels are
# weighted by their mean counts. ``backend="jax"`` would compile the loop first, which pays for many images.


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-theta[:, None, :] * data["t"][:, None])


problem = xv.separable(M, counts, data={"t": t}, weights=1 / counts.mean(axis=0))
theta0, over = np.full((10_000, 1), 0.5), xv.sets.Box(0.02, 5.0)
for name in ("torch", "numpy"):
    fits = xv.solve_many(problem, theta0, over=over, backend=name)
    print(f"{name}: {fits.success.sum()} of {len(fits)} converged in {fits.seconds:.2f} s")
print(fits)

# %%
# Pixels of few counts scatter more, those of the background most of all.

found = 1 / fits.theta.reshape(100, 100)
figure, (camera, image, scatter) = plt.subplots(1, 3, figsize=(10, 3), width_ratios=[1, 1, 1.1])
shown = camera.imshow(counts.sum(axis=1).reshape(100, 100), cmap="gray")
figure.colorbar(shown, ax=camera, label="counts", shrink=0.8)
camera.set_title("What a camera sees")
shown = image.imshow(found, cmap="viridis", vmin=1.0, vmax=4.5)
figure.colorbar(shown, ax=image, label="lifetime (ns)", shrink=0.8)
image.set_title("10,000 fits show three cells")
for ax in (camera, image):
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)
for tau in np.unique(lifetime):
    scatter.hist(found[lifetime == tau], bins=np.arange(0.6, 5.0, 0.04), color=plt.cm.viridis((tau - 1) / 3.5))
    scatter.axvline(tau, color="0.3", linewidth=1, linestyle="--")
scatter.set(xlabel="lifetime (ns)", ylabel="pixels", title="They scatter about the truth (dashed)")
plt.show()
