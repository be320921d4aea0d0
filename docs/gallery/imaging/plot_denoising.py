"""
Denoising with a learned prior
==============================

What should a clean photograph look like to a denoiser? Total variation says that neighbouring pixels agree. A field of
experts says that a few filters answer little, and learns which: the lower level denoises patches, and the upper level
asks how far the results are from the clean ones (Roth, Black 2009; Chen, Ranftl, Pock 2014).
"""

# %%
# Patches of the left halves of the two photographs that scikit-learn brings, in grey, with noise of a tenth of white.

import math

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images

import xvarpro as xv

rng = np.random.default_rng(0)
photographs = [
    image[:426].mean(axis=2).reshape(213, 2, 320, 2).mean(axis=(1, 3)) / 255 for image in load_sample_images().images
]


def patch(photograph, left, right, side):
    i, j = rng.integers(photograph.shape[0] - side), rng.integers(left, right - side)
    return photograph[i : i + side, j : j + side].ravel()


def with_noise(clean):
    return clean + 0.1 * rng.normal(size=clean.shape)


clean = np.stack([patch(photographs[k % 2], 0, 160, 24) for k in range(4)], axis=1)
noisy = with_noise(clean)

# %%
# ``1/2 |w - noisy|^2 + sum SoftL1(K w)`` for the answers K w of 5 x 5 filters, the length of a filter being its weight.
# Squares are a ridge on the correction ``u = w - noisy``, which is the unknown: the loss then compares ``K u`` with
# ``-K noisy``. K is known by its products, so that it may be large.


def answers(filters, w):
    """Of every filter at every place, (filters * places, k), to images w, (pixels, k)."""
    xp, k, side = xv.array_namespace(w), w.shape[1], math.isqrt(w.shape[0])
    x, valid = xp.reshape(w, (side, side, k)), side - 4
    shifted = xp.stack([x[i : i + valid, j : j + valid, :] for i in range(5) for j in range(5)])
    return xp.reshape(filters.mT @ xp.reshape(shifted, (25, -1)), (-1, k))


def backward(filters, r):
    """The adjoint of ``answers``."""
    xp, k = xv.array_namespace(r), r.shape[1]
    valid = math.isqrt(r.shape[0] // filters.shape[1])
    terms = xp.reshape(filters @ xp.reshape(r, (filters.shape[1], -1)), (5, 5, valid, valid, k))

    def spread(terms):  # the sum over the first axis of terms that it shifts along what is then the second one
        zeros = [xp.zeros_like(terms[0, :, :n, ...]) for n in range(5)]
        return sum(xp.concat([zeros[i], terms[i, ...], zeros[4 - i]], axis=1) for i in range(5))

    return xp.reshape(spread(spread(terms)), (-1, k))


def denoiser(noisy, clean):
    pixels, answering = len(noisy), (math.isqrt(len(noisy)) - 4) ** 2
    return xv.bilevel(
        lower=xv.Level(
            lambda filters, data: xv.operators.MatrixFree(
                answers, backward, (answering * filters.shape[1], pixels), filters
            ),
            lambda filters, data: -answers(filters, data["noisy"]),
            lam=1.0,
            loss=xv.losses.SoftL1(0.03),
        ),
        upper=xv.Level(lambda filters, data: xv.operators.Diagonal(data["ones"]), clean - noisy),
        data={"noisy": noisy, "ones": np.ones(pixels)},
    )


# %%
# Two differences, as total variation has them, and four waves of small weight are what the filters start from.

filters = np.zeros((5, 5, 6))
filters[2, 2, :2], filters[2, 3, 0], filters[3, 2, 1] = 2.0, -2.0, -2.0
waves = np.cos(np.pi * (np.arange(5) + 0.5) * np.arange(5)[:, None] / 5)
for n, (a, b) in enumerate([(1, 1), (2, 0), (0, 2), (1, 2)]):
    filters[..., 2 + n] = 0.04 * np.outer(waves[a], waves[b])
filters = filters.reshape(25, 6)
over = xv.sets.Columns(xv.sets.L2Ball(5.0))
fit = xv.solve(
    denoiser(noisy, clean),
    filters,
    over=over,
    algorithm=xv.algorithms.ProjectedQuasiNewton(settle=0),
    max_iter=12,
    progress=False,
)

# %%
# The prior does not know the size of an image: on 48 x 48 pixels of the right halves it is better than what it started
# from, here and on most patches. On the petals, busier than the patches that it has learned from, it is worse by up
# to 1.3 dB.


def quality(squares, pixels):
    return 10 * np.log10(pixels / squares)  # dB


shore, flower = photographs[0][90:138, 170:218].ravel(), patch(photographs[1], 160, 320, 48)
whole = np.stack([shore, flower], axis=1)
given = with_noise(whole)
shown = {"clean": whole, "noisy": given}
for name, theta in {"differences": filters[:, :2], "learned": fit.theta}.items():
    shown[name] = given + xv.solve_lower(denoiser(given, whole), theta).w
scores = {name: quality(np.sum((image - whole) ** 2), whole.size) for name, image in shown.items() if name != "clean"}
print({name: f"{score:.2f} dB" for name, score in scores.items()})
assert scores["learned"] > scores["differences"] > scores["noisy"]

figure, axes = plt.subplots(2, 5, figsize=(10.0, 4.2), layout="constrained")
for k, row in enumerate(axes):
    for ax, (name, image) in zip(row, shown.items(), strict=False):
        ax.imshow(image[:, k].reshape(48, 48), cmap="gray", vmin=0, vmax=1)
        ax.set_title(f"{name}, {scores[name]:.1f} dB" if name in scores else name, fontsize=9)
    sizes = np.linalg.norm(fit.theta, axis=0)
    tiles = (fit.theta / np.abs(fit.theta).max(axis=0)).reshape(5, 5, 6)[..., 3 * k : 3 * k + 3]
    framed = np.pad(tiles, ((1, 0), (1, 0), (0, 0)), constant_values=np.nan)
    row[4].imshow(np.concatenate(list(np.moveaxis(framed, 2, 0)), axis=1), cmap="coolwarm", vmin=-1, vmax=1)
    row[4].set_title("filters of weight " + ", ".join(f"{s:.1f}" for s in sizes[3 * k : 3 * k + 3]), fontsize=8)
for ax in axes.flat:
    ax.set(xticks=[], yticks=[])
plt.show()
