"""
A series of 160 spectra, each from the one before
=================================================

Two peaks move through each other as a sample is heated: where are they in each of 160 spectra, and how high? A start
that is good for the first spectrum is a bad one for the last. So each fit starts where that of the spectrum before has
ended, as people do by hand.
"""

# %%
# The peaks and the noise. Heights change as well, and the second peak fades.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
x, temperature = np.linspace(0.0, 10.0, 120), np.linspace(300.0, 500.0, 160)
part = (temperature - 300.0) / 200.0
centres = np.stack([2.5 + 5.0 * part**1.5, 4.0 + 1.2 * np.sin(3.0 * part)], axis=1)
heights = np.stack([1.0 + 0.5 * part, 1.4 - 1.1 * part], axis=1)
widths = np.array([0.55, 0.8])
peaks = np.exp(-0.5 * ((x[:, None] - centres[:, None, :]) / widths) ** 2)
spectra = np.einsum("ijk,ik->ij", peaks, heights) + 0.15 + 0.02 * rng.normal(size=(160, 120))

# %%
# The model of one spectrum, of which ``lifted`` makes that of all: two peaks and a constant. Centres and widths lie in
# boxes, the heights of peaks are nonnegative.


def M(theta, data):
    xp = xv.array_namespace(theta["centre"])
    away = (data["x"][:, None] - theta["centre"]) / theta["width"]
    return xp.concat([xp.exp(-0.5 * away**2), xp.ones_like(away[:, :1])], axis=1)


problem = xv.many.lifted(xv.separable(M, xv.Each(spectra), data={"x": x}, W=xv.lower.Nonnegative()))
first = {"centre": np.array([2.0, 4.5]), "width": np.array([0.7, 0.7])}
theta0 = {name: np.tile(value, (160, 1)) for name, value in first.items()}
over = {"centre": xv.sets.Box(0.0, 10.0), "width": xv.sets.Box(0.3, 1.5)}
alone = xv.solve_many(problem, theta0, over=over)
series = xv.solve_many(problem, theta0, over=over, order=1)
for name, fits in (("from one start", alone), ("from the one before", series)):
    right = np.abs(fits.theta["centre"] - centres).max(axis=1) < 0.3
    print(f"{name}: {right.sum()} of 160 right, {fits.seconds:.1f} s")
print(series)

# %%
# Errors are largest where the peaks lie on top of one another. From one start the peaks change names half way.

errors = series.statistics()
figure, (map_, wrong, heights_) = plt.subplots(1, 3, figsize=(10, 3.2))
for ax, fits, title in ((wrong, alone, "From one start"), (map_, series, "Each from the one before")):
    ax.imshow(spectra.T, extent=(300, 500, 0, 10), origin="lower", aspect="auto", cmap="Greys", alpha=0.8)
    for k in range(2):
        ax.plot(temperature, fits.theta["centre"][:, k], ".", markersize=2, label=f"peak {k + 1}")
    ax.set(xlabel="temperature (K)", ylabel="position", title=title, ylim=(0, 10))
    ax.grid(visible=False)
map_.legend(loc="upper left", markerscale=4)
for k in range(2):
    height, error = series.w[:, k], errors.w_stderr[:, k]
    heights_.plot(temperature, height, linewidth=1)
    heights_.fill_between(temperature, height - 2 * error, height + 2 * error, alpha=0.3)
    heights_.plot(temperature, heights[:, k], "k--", linewidth=0.8)
heights_.set(xlabel="temperature (K)", title="Heights, two errors, the truth dashed", ylim=(-0.2, 2.2))
plt.show()
