"""
4,096 fits: the lifetimes of an image
=====================================

What is the lifetime of the fluorescence in each pixel of an image? A camera counts photons in 64 channels of time, few
of them, and blurs the decay by its own response. So every pixel is a fit of a decay, folded with the response, to
counts: by the likelihood of Poisson and not by least squares, which a handful of photons would bias. All are solved in
one batch, and the errors of all come with them.
"""

# %%
# Three cells with lifetimes of their own on a background, dimmer towards their rims, and the response of the camera: a
# pulse of a quarter of a nanosecond.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
size, m, width = 64, 64, 0.2  # pixels, channels, ns
t = width * np.arange(m)
row, column = np.mgrid[0:size, 0:size] / size
lifetime, brightness = np.full((size, size), 1.2), np.full((size, size), 100.0)
for i, j, radius, tau in ((0.30, 0.32, 0.24, 3.0), (0.68, 0.62, 0.27, 2.2), (0.24, 0.78, 0.15, 4.0)):
    distance = np.hypot(row - i, column - j) / radius
    lifetime = np.where(distance < 1, tau, lifetime)
    brightness = np.where(distance < 1, 150 + 700 * (1 - distance**2), brightness)

pulse = np.exp(-0.5 * ((t - 1.0) / 0.25) ** 2)
delay = np.subtract.outer(np.arange(m), np.arange(m))
response = np.where(delay >= 0, pulse[np.abs(delay)], 0.0) / pulse.sum()  # (m, m): of a channel, to those before it
decays = np.exp(-t / lifetime[..., None]) @ response.T
clean = brightness[..., None] * decays / decays.sum(axis=-1, keepdims=True) + 0.2
counts = rng.poisson(clean).reshape(-1, m).astype(float)

# %%
# The problem in batch form: theta, one rate per pixel, is (4096, 1), and designs are (4096, 64, 2), with a column for
# the decay and one for counts in the dark, neither of which is negative. Larger images are solved in parts,
# ``chunks=4096``: what 4,096 pixels take stays in the cache of a processor.


def M(theta, data):
    xp = xv.array_namespace(theta)
    decays = xp.exp(-theta * data["t"]) @ data["response"].T
    return xp.stack([decays, xp.ones_like(decays)], axis=-1)


problem = xv.separable(
    M, counts, data={"t": t, "response": response}, loss=xv.losses.Poisson(), W=xv.lower.Nonnegative()
)
theta0, over = np.full((size**2, 1), 0.5), xv.sets.Box(0.05, 5.0)
fits = xv.solve_many(problem, theta0, over=over)
errors = fits.statistics()
print(fits)
print(errors)

# %%
# The lifetime is one over the rate, and its relative error the same. Pixels of few counts know less. Where no counts in
# the dark are found, errors are those for none, and a little small.

found = 1 / fits.theta[:, 0]
error = errors.theta_stderr[:, 0] * found**2
inside = np.abs(found - lifetime.ravel()) < 1.96 * error
print(f"{inside.mean():.1%} of the true lifetimes lie within 1.96 errors")

figure, axes = plt.subplots(1, 3, figsize=(10, 3))
for ax, values, title, label, low, top in (
    (axes[0], counts.sum(axis=1), "What a camera sees", "counts", None, None),
    (axes[1], found, "4,096 fits show three cells", "lifetime (ns)", 1.0, 4.5),
    (axes[2], error, "The error of each", "ns", 0.0, 0.6),
):
    shown = ax.imshow(values.reshape(size, size), cmap="viridis", vmin=low, vmax=top)
    figure.colorbar(shown, ax=ax, label=label, shrink=0.8)
    ax.set(xticks=[], yticks=[], title=title)
    ax.grid(visible=False)
plt.show()
