"""
How many components, and how certain
====================================

How many decays are there in a curve, and what is known of it after the last point? With the amplitudes integrated out
exactly, models with one to four decays have probabilities, and the curve has a band.
"""

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

# %%
# A measurement of two decays. How large its noise is, and how large the amplitudes are, is not known: the ridge is that
# of a prior of the amplitudes, and its logarithm is fitted with those of the rates.
t = np.linspace(0.0, 2.0, 60)
y = np.exp(-t) + 0.7 * np.exp(-7.0 * t) + 0.08 * np.random.default_rng(0).normal(size=t.size)


def decays(theta, t):
    """One column ``exp(-rate t)`` for each rate."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * xp.exp(theta["log_rates"]))


def ridge(theta, t):
    return xv.array_namespace(theta).exp(theta["log_ridge"])


m = xv.marginal(xv.separable(decays, y, data=t, lam=ridge))
over = {"log_rates": xv.sets.Box(np.log(0.1), np.log(50.0)), "log_ridge": xv.sets.Box(-12.0, 3.0)}

# %%
# Each number of decays is fitted, and its evidence taken: the density of the data, with rates and ridge integrated out
# as well. A model with more decays than the data have spreads its probability over data that were not seen.
fits = {}
for k in (1, 2, 3, 4):
    start = {"log_rates": np.linspace(0.0, 0.8 * (k - 1), k), "log_ridge": np.array(-4.0)}
    fits[k] = xv.solve(m, start, over=over)
table = xv.compare_models({f"{k} decays": fit.laplace(components=k) for k, fit in fits.items()})
print(table)

# %%
# Draws of two decays, with amplitudes and noise, give the band of the curve, and that of new observations.
draws = fits[2].sample(400)
print(draws)
later = np.linspace(0.0, 3.0, 100)
band, new = draws.band(later, level=0.9), draws.band(later, level=0.9, noise=True)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4), width_ratios=(1, 2))
left.bar(list(fits), table.probabilities, width=0.6)
left.set(xlabel="decays", ylabel="probability", title="Two decays, most likely", xticks=list(fits), ylim=(0.0, 1.0))
right.plot(t, y, "o", color="C6", label="measured", zorder=3)
right.fill_between(later, new.lower, new.upper, color="0.9", label="90 % of new observations")
right.fill_between(later, band.lower, band.upper, color="C0", alpha=0.4, linewidth=0.0, label="90 % of the curves")
right.plot(later, band.value, color="C0", label="mean of the curves")
right.set(xlabel="time", ylabel="signal", title="The curve, after the last point as well")
right.legend()
plt.show()
