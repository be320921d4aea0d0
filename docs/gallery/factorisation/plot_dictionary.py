"""
A dictionary of pen strokes
===========================

Which few strokes of a pen add up to all handwritten digits? A dictionary is learned in which every atom has a budget of
ten pixels. The figure shows the atoms, digits that are put together from them, and the objective of the default method
and of the paper's while they run, from the same starts for the same seconds.
"""

# %%
# Images are the columns of X. The design is the dictionary itself, ``M(D) = D``: the codes of all digits are the
# eliminated variable, with a ridge, and D is theta. Each column of D lies in a set of its own, the convex hull of the
# images that have ten pixels of 1 or -1 and are 0 elsewhere.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import xvarpro as xv

X = load_digits().data.T / 16.0  # (64 pixels, 1797 images)
strokes = xv.sets.Columns(xv.sets.KSparsePolytope(10, 1.0))
problem = xv.separable(lambda D, data: D, X, lam=10.0, compress=True)

# %%
# A start is 30 of the images, moved into the set. The default method takes projected steps here; the paper's,
# CR-VarPro, needs no projection and steps toward vertices of the set.

methods = {"default": None, "CR-VarPro": xv.algorithms.cr_varpro()}
fits = {name: [] for name in methods}
for seed in range(3):
    some = np.random.default_rng(seed).choice(X.shape[1], 30, replace=False)
    D0 = xv.project(X[:, some], strokes)
    for name, algorithm in methods.items():
        fit = xv.solve(problem, D0, over=strokes, algorithm=algorithm, time_limit=1.2, max_iter=5000, tol=1e-7)
        fits[name].append(fit)
        print(f"start {seed}, {name}: objective {fit.value:.1f} after {fit.n_iter} iterations")

# %%
# Nothing in the problem says that an atom has one sign, or that its pixels are neighbours. The budget brings it out.

D, codes = fits["default"][0].theta, fits["default"][0].w
sign = np.sign(D.sum(axis=0))  # an atom and its codes may change sign together
D, codes = D * sign, codes * sign[:, None]
print(f"pixels above 0.01 in an atom, median: {np.median((D > 0.01).sum(axis=0)):g}; smallest entry: {D.min():.2g}")


def sheet(images, columns):
    """Images in rows, a grey line between them."""
    tiles = [np.pad(image.reshape(8, 8), 1, constant_values=np.nan) for image in images]
    return np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)])


figure, (atoms, sums, run) = plt.subplots(1, 3, figsize=(10.0, 3.7), width_ratios=[1.2, 0.4, 1.25])
grey = {"cmap": plt.colormaps["Greys"].with_extremes(bad="0.85"), "vmin": 0.0, "vmax": 1.0}
atoms.imshow(sheet(D.T, 6), **grey)
atoms.set_title("30 atoms: strokes")
sums.imshow(sheet([image for i in range(5) for image in (X[:, i], D @ codes[:, i])], 2), **grey)
sums.set_title("digit, sum")
for axes in (atoms, sums):
    axes.set_axis_off()
low = 1.01 * min(fit.value for name in methods for fit in fits[name])
needed = {}
for name, color, place in (("CR-VarPro", "0.45", (0.6, 0.5)), ("default", "#0072b2", (0.08, 0.2))):
    for fit in fits[name]:
        run.semilogx(fit.trace.seconds[1:], fit.trace.value[1:], color=color, linewidth=1.8)
    reached = [fit.trace.seconds[fit.trace.value <= low] for fit in fits[name]]
    needed[name] = np.median([seconds[0] if seconds.size else np.inf for seconds in reached])
    run.text(*place, name, color=color, transform=run.transAxes)
run.set(xlabel="seconds", ylabel="objective")
run.set_title("Within 1 % of the lowest after\n" + ", ".join(f"{s:.2f} s ({name})" for name, s in needed.items()))
plt.show()
