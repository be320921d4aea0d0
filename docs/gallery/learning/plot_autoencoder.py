"""
An autoencoder that selects its latents
=======================================

How many latents does an autoencoder of digits need? Gates under a budget switch latents off, the more of them the
larger the ridge on the decoder. The figure shows the gates for three ridges, digits as they come back from the
latents that stayed on, and what these explain of new digits next to as many principal components.
"""

# %%
# The encoder is a tanh layer, and gates s multiply its latents; the linear decoder W is eliminated. Gates are
# nonnegative and have a sum of at most 1, so that latents compete for it; the weights of the layer are free.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import xvarpro as xv

X = load_digits().data / 16.0
train, new = X[:1000], X[1000:]
mean = train.mean(axis=0)


def latents(theta, X):
    xp = xv.array_namespace(X)
    return xp.tanh(X @ theta["A"] + theta["b"]) * theta["s"]


# %%
# Every ridge starts from the same random layer, with the same share of the budget for all 32 latents. ``solve`` warns
# of columns of the design that have become zero; here they are what is asked for.

rng = np.random.default_rng(0)
theta0 = {"A": 0.1 * rng.normal(size=(64, 32)), "b": np.zeros(32), "s": np.full(32, 1.0 / 32)}
fits = {}
warnings.filterwarnings("ignore", category=xv.DeadUnitsWarning)
for lam in (0.1, 0.3, 1.0):
    problem = xv.separable(latents, train - mean, data=train - mean, lam=lam)
    fits[lam] = xv.solve(problem, theta0, over={"s": xv.sets.CappedSimplex(1.0)}, tol=0.03, max_iter=300)

# %%
# Latents of new digits, times the decoder, are their reconstructions. Principal components are the best that a linear
# decoder of as many latents can do on the digits that it was fitted to.


def explained(images):
    return 100.0 * (1.0 - np.sum((images - new) ** 2) / np.sum((mean - new) ** 2))


def reconstruct(fit, images):
    return mean + latents(fit.theta, images - mean) @ fit.w


on = {lam: np.count_nonzero(fit.theta["s"]) for lam, fit in fits.items()}
share = {lam: explained(reconstruct(fit, new)) for lam, fit in fits.items()}
axes_of = range(1, 33)
bound = [explained(p.inverse_transform(p.transform(new))) for p in (PCA(k).fit(train) for k in axes_of)]
for lam, fit in fits.items():
    print(f"ridge {lam}: {fit.status.name} in {fit.n_iter} iterations, {on[lam]} latents on")
    print(f"  explained of new digits {share[lam]:.1f} %, by as many principal components {bound[on[lam] - 1]:.1f} %")

# %%

figure, (gates, images, curve) = plt.subplots(1, 3, figsize=(10.0, 3.6), width_ratios=[1.1, 0.75, 1.15])
shown = [new[:4]]
for (lam, fit), color in zip(fits.items(), ("#0072b2", "#009e73", "#d55e00"), strict=True):
    s = np.sort(fit.theta["s"])[::-1]
    gates.step(axes_of, s, where="mid", color=color, linewidth=1.8)
    gates.text(on[lam] + 1.5, 0.9 * s[0], f"ridge {lam:g}: {on[lam]} on", color=color)
    curve.plot(on[lam], share[lam], "o", color=color)
    curve.annotate(f"ridge {lam:g}", (on[lam], share[lam]), (7, -10), textcoords="offset points", color=color)
    shown.append(reconstruct(fit, new[:4]))
gates.set(xlabel="latent, largest gate first", ylabel="gate")
gates.set_title("A larger ridge leaves fewer latents")
columns = [np.vstack([np.pad(x.reshape(8, 8), 1, constant_values=np.nan) for x in column]) for column in shown]
images.imshow(np.hstack(columns), cmap=plt.colormaps["Greys"].with_extremes(bad="0.85"), vmin=0, vmax=1)
for i, name in enumerate(["digit", *(f"{n} on" for n in on.values())]):
    images.text(4.5 + 10 * i, 42, name, ha="center", fontsize=9)
images.set_title("New digits come back")
images.set_axis_off()
curve.plot(axes_of, bound, color="0.6", zorder=0)
curve.text(32, 84, "principal components", color="0.4", ha="right", va="top")
curve.set(xlabel="latents, or components", ylabel="explained of new digits, %")
curve.set_title("Nearly as much as principal components")
plt.show()
