"""
A map of T2, with the error of every pixel
==========================================

How much of the water in a slice of brain is held in myelin? Its signal decays within some 20 ms, that of all other
water within 80 ms, and every pixel has a train of 32 echoes. Two amplitudes that cannot be negative and two decay times
are fitted in nearly 4,000 pixels at once. The figure shows the share of the fast water and its standard error.
"""

# %%
# A slice: grey matter with little myelin, white matter with more, and two ventricles, which hold none. Echoes are 10 ms
# apart, and the noise is a two-hundredth of the signal.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
size, t = 80, 0.01 * np.arange(1, 33)  # s
row, column = (2 * np.mgrid[0:size, 0:size] + 1) / size - 1
radius, angle = np.hypot(row, 1.2 * column), np.arctan2(row, column)
head, white = radius < 0.95, radius < 0.66 + 0.06 * np.cos(7 * angle)
ventricle = np.hypot(row + 0.1, 2.5 * (np.abs(column) - 0.14)) < 0.22
share = np.where(white, 0.15 + 0.06 * row, 0.03)
share[ventricle] = 0.0
slow = np.where(ventricle, 0.3, np.where(white, 0.075, 0.09))  # s
clean = share[..., None] * np.exp(-t / 0.018) + (1 - share[..., None]) * np.exp(-t / slow[..., None])
sigma = 0.005
echoes = clean + sigma * rng.normal(size=clean.shape)

# %%
# The problem in batch form: theta has two rates per pixel, and a design (pixels, 32, 2). Pixels outside of the head are
# left out. Amplitudes are nonnegative, and each rate stays in a range of its own, so that the two do not change places.


def M(theta, data):
    xp = xv.array_namespace(theta["fast"])
    rates = xp.stack([theta["fast"], theta["slow"]], axis=-1)
    return xp.exp(-rates[:, None, :] * data["t"][:, None])


y = echoes[head]
problem = xv.separable(M, y, data={"t": t}, weights=np.full(32, sigma**-2), W=xv.lower.Nonnegative())
theta0 = {"fast": np.full(len(y), 50.0), "slow": np.full(len(y), 12.0)}
over = {"fast": xv.sets.Box(25.0, 100.0), "slow": xv.sets.Box(1.0, 20.0)}  # T2 of 10 to 40 ms, and of 50 ms to 1 s
fits = xv.solve_many(problem, theta0, over=over)
errors = fits.statistics()
print(fits)
print(errors)

# %%
# The share of the fast water, and its error by that of both amplitudes: their covariance stands behind the one of the
# two rates. It is NaN where an error has no meaning, as where an amplitude has ended at zero.

fast, slow = fits.w.T
found, gradient = fast / (fast + slow), np.stack([slow, -fast], axis=1) / (fast + slow)[:, None] ** 2
covariance = errors.covariance[:, 2:, 2:]
error = np.sqrt(np.einsum("bi,bij,bj->b", gradient, covariance, gradient))
error[(fast == 0) | ~np.isfinite(error)] = np.nan
print(f"{np.mean(fast[ventricle[head]] == 0):.0%} of the pixels of the ventricles have no fast water at all")
pull = ((found - share[head]) / error)[np.isfinite(error)]
print(f"{np.mean(np.abs(pull) < 1.96):.1%} of {pull.size:,} true shares lie within 1.96 errors")


def image(values):
    shown = np.full((size, size), np.nan)
    shown[head] = values
    return shown


figure, axes = plt.subplots(1, 3, figsize=(10, 3.2))
for ax, values, title, top in (
    (axes[0], image(share[head]), "The truth", 0.25),
    (axes[1], image(found), f"{len(y):,} fits", 0.25),
    (axes[2], image(error), "Standard error (white: none)", 0.06),
):
    shown = ax.imshow(values, vmin=0.0, vmax=top, cmap="viridis")
    figure.colorbar(shown, ax=ax, label="share of fast water", shrink=0.8)
    ax.set(xticks=[], yticks=[], title=title)
    ax.grid(visible=False)
plt.show()
