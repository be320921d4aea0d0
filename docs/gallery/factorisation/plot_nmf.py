"""
Digits as sums of nonnegative parts
===================================

Which parts make up handwritten digits if parts can only be added? Nonnegative matrix factorisation finds them. The
figure shows the parts, a new digit as their sum, and the objectives of three fits next to those of three fits of
scikit-learn's ``NMF``.
"""

# %%
# ``NMF`` minimises ``1/2 |codes D - X|^2`` over nonnegative codes and nonnegative atoms of the sum 1. Codes are
# eliminated exactly, and the gap bounds what one step of the atoms could still gain.

import matplotlib.pyplot as plt
import numpy as np
import sklearn.decomposition
from sklearn.datasets import load_digits

from xvarpro.sklearn import NMF

X = load_digits().data / 16.0
train, new = X[:500], X[500:]
sizes, seeds = [4, 8, 16], [0, 1, 2]
fits = {n: [NMF(n, random_state=seed).fit(train) for seed in seeds] for n in sizes}
model = min(fits[16], key=lambda fit: fit.objective_)
print(f"16 atoms: {model.status_.name}, objective {model.objective_:.1f}, gap {model.gap_:.2g}")
print(f"explained of the sum of squares: {model.score(train):.1%}, of new digits {model.score(new):.1%}")

# %%
# Scikit-learn's has the same objective. It starts from three seeds as well, and runs until a tolerance that is tighter
# than its default.

rivals = {
    n: [sklearn.decomposition.NMF(n, max_iter=5000, tol=1e-5, random_state=seed).fit(train) for seed in seeds]
    for n in sizes
}
ours = np.array([[fit.objective_ for fit in fits[n]] for n in sizes])
theirs = np.array([[0.5 * fit.reconstruction_err_**2 for fit in rivals[n]] for n in sizes])
lowest = np.minimum(ours, theirs).min(axis=1, keepdims=True)
above, rivals_above = 100.0 * (ours / lowest - 1.0), 100.0 * (theirs / lowest - 1.0)
for n, a, b in zip(sizes, above, rivals_above, strict=True):
    print(f"{n} atoms, % above the lowest: xvarpro {np.sort(a).round(2)}, scikit-learn {np.sort(b).round(2)}")

# %%
# The codes of the first new digit say how much of each part it has.

digit = new[0]
codes = model.transform(digit[None])[0]
largest = np.argsort(-codes)[:4]
print(f"its four largest parts have {codes[largest].sum() / codes.sum():.0%} of the sum of the codes")


def sheet(images, columns):
    """Images in rows, a grey line between them."""
    tiles = [np.pad(image.reshape(8, 8), 1, constant_values=np.nan) for image in images]
    return np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)])


figure, (parts, total, compared) = plt.subplots(1, 3, figsize=(10.0, 3.5), width_ratios=[1.1, 0.85, 1.3])
grey = {"cmap": plt.colormaps["Greys"].with_extremes(bad="0.85"), "vmin": 0.0, "vmax": 1.0}
parts.imshow(sheet([atom / atom.max() for atom in model.components_], 4), **grey)
parts.set_title("16 parts")
pieces = codes[largest, None] * model.components_[largest]
total.imshow(sheet([digit, codes @ model.components_, *pieces], 2), **grey)
total.set_title("New digit, sum of all parts;\nthe four largest of them")
for axes in (parts, total):
    axes.set_axis_off()
place = np.arange(len(sizes))
compared.plot(place + 0.12, rivals_above, "s", color="0.6", alpha=0.8)
compared.plot(place - 0.12, above, "o", color="#0072b2", alpha=0.8)
compared.text(0.97, 0.92, "xvarpro: circles", color="#0072b2", ha="right", transform=compared.transAxes)
compared.text(0.97, 0.84, "scikit-learn: squares", color="0.4", ha="right", transform=compared.transAxes)
compared.set(xlabel="atoms", xticks=place, xticklabels=sizes, ylabel="objective over the lowest, %", xlim=(-0.5, 2.5))
compared.set_title(f"All within {max(above.max(), rivals_above.max()):.1f} % of the lowest")
plt.show()
