"""
Unmixing an image that memory does not hold
===========================================

How much of each mineral is in every pixel of a hyperspectral image? Spectra of a library answer where they are right.
Here the absorption bands of two minerals lie elsewhere than in the library, as they do with other compositions. Their
places and widths are fitted to all pixels at once, with nonnegative abundances in each, and the image is read a strip
at a time. The figure shows both spectra, errors of abundances with the library and with what was fitted, and memory.
"""

# %%
# Spectra are a continuum with an absorption band (a modified Gaussian, as in spectroscopy of minerals): two minerals
# with bands of unknown place and width, a third one without a band, and shade, which is flat.

import tracemalloc
from functools import partial

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

wavelength = np.linspace(2.0, 2.5, 80)  # micrometres
library = {"centre": np.array([2.20, 2.31]), "width": np.array([0.020, 0.030])}
truth = {"centre": np.array([2.212, 2.325]), "width": np.array([0.026, 0.024])}
over = {"centre": xv.sets.Box(2.05, 2.45), "width": xv.sets.Box(0.005, 0.1)}


def spectra(theta, wavelength):
    xp = xv.array_namespace(theta["centre"])
    x = xp.expand_dims(wavelength, axis=1)
    continuum = 0.5 + 0.3 * (x - 2.0)
    bands = continuum * xp.exp(-0.6 * xp.exp(-(((x - theta["centre"]) / theta["width"]) ** 2) / 2))
    return xp.concat([bands, 0.9 - 0.8 * (x - 2.0), 0.05 * xp.ones_like(x)], axis=1)


# %%
# The image: 160 lines of 160 pixels in strips of 40 lines, which stand for what a file would give. Each pixel has
# abundances that sum to 1, some of them 0, and noise of 0.5 % of full scale.

side, lines = 160, 40
grid = np.linspace(0.0, 1.0, side)
blobs = [(0.3, 0.3, 0.25), (0.7, 0.4, 0.2), (0.4, 0.75, 0.3), (0.8, 0.8, 0.35)]
maps = np.stack([np.exp(-((grid[:, None] - a) ** 2 + (grid - b) ** 2) / (2 * s**2)) for a, b, s in blobs])
maps = np.maximum(maps - 0.3, 0.0)
maps[3] += 0.02  # shade is everywhere
maps /= maps.sum(axis=0)


def strip(i):
    w = maps[:, lines * i : lines * (i + 1)].reshape(4, -1)
    return spectra(truth, wavelength) @ w + 0.005 * np.random.default_rng(i).normal(size=(80, lines * side))


def image(strips):
    return xv.ColumnChunks(lambda: map(strip, range(strips)))


def unmixing(strips):
    return xv.separable(spectra, image(strips), data=wavelength, W=xv.lower.Nonnegative())


# %%
# Fixed spectra of the library are what the field takes first. The fit starts there. Its abundances come a strip at a
# time, too.

fit = xv.solve(unmixing(4), library, over)
print(fit.status.name, {name: x.round(4) for name, x in fit.theta.items()})
found = np.concatenate([w.reshape(4, lines, side) for w in fit.w_chunks()], axis=1)
known = xv.solve_lower(unmixing(4), library).w.reshape(4, side, side)
for name, w in (("of the library", known), ("that were fitted", found)):
    off = np.sqrt(np.mean((w - maps)[:3] ** 2))
    print(f"abundances of the minerals, with spectra {name}: off by {off:.4f}")

# %%
# The memory of a fit does not grow with the image, as that of all pixels at once does.


def peak(problem):
    tracemalloc.start()
    xv.solve(problem(), library, over, max_iter=0)
    found = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return found


def at_once(strips):
    y = np.concatenate([strip(i) for i in range(strips)], axis=1)
    return xv.separable(spectra, y, data=wavelength, W=xv.lower.Nonnegative())


strips, size = np.array([1, 2, 4]), 80 * lines * side * 8 / 2**20
peaks, whole = ([peak(partial(problem, n)) for n in strips] for problem in (unmixing, at_once))
print(f"strips of {size:.1f} MB: at most {max(peaks):.0f} MB in use; {whole[-1]:.0f} MB with all pixels at once")
figure, (lines_of, by_library, by_fit, memory) = plt.subplots(
    1, 4, figsize=(12.5, 3.0), width_ratios=(1.2, 1, 1.2, 1.2)
)
for theta, color, style, name in ((library, "#d55e00", "--", "library"), (fit.theta, "#0072b2", "-", "fitted")):
    lines_of.plot(wavelength, spectra(theta, wavelength)[:, :2], style, color=color, label=[name, None])
lines_of.set(xlabel="wavelength (micrometres)", ylabel="reflectance", title="Spectra of two minerals")
lines_of.legend(fontsize="small")
for ax, w, title in ((by_library, known, "Error with the library"), (by_fit, found, "Error with fitted spectra")):
    off = np.abs(w - maps)[:3].max(axis=0)  # of the mineral that is off most
    shown = ax.imshow(off, vmin=0.0, vmax=0.1, cmap="magma")
    ax.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=by_fit, label="abundance", extend="max")
memory.plot(strips * size, whole, "s--", color="0.6", label="all pixels at once")
memory.plot(strips * size, peaks, "o-", color="#0072b2", label="in strips")
memory.set(xlabel="image (MB)", ylabel="peak memory (MB)", ylim=(0, None), title="Memory does not grow")
memory.legend(fontsize="small")
plt.show()
