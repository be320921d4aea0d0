"""
A decay with error bars
=======================

How fast do two species decay, how much of each is there, and how sure is that? The rates enter through exponentials,
the amounts linearly: the amounts are solved for exactly at every trial of the rates, so that only the rates need a
start.
"""

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

# %%
# A measurement: two decays under noise of a known size.
rng = np.random.default_rng(0)
t = np.linspace(0.0, 4.0, 60)
sigma = 0.08
y = 2.0 * np.exp(-0.8 * t) + 1.0 * np.exp(-5.0 * t) + sigma * rng.normal(size=t.size)


# %%
# The model is a matrix with one column for each decay. Rates lie in a box; the weights of the residuals are the inverse
# variances.
def decays(rate, data):
    """One column ``exp(-rate t)`` for each rate."""
    xp = xv.array_namespace(rate)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * rate)


problem = xv.separable(decays, y, data={"t": t}, weights=np.full(t.size, sigma**-2))
fit = xv.solve(problem, np.array([0.3, 2.0]), over=xv.sets.Box(0.0, 20.0))
print(fit)

# %%
# The data with their error bars, and the curve with the band in which it lies with 95 % confidence.
value, lower, upper = fit.band({"t": (fine := np.linspace(0.0, 4.0, 300))}, absolute_sigma=True)
figure, axes = plt.subplots()
axes.errorbar(t, y, yerr=sigma, fmt="o", color="C6", label="measured", zorder=1)
axes.fill_between(fine, lower, upper, alpha=0.3, linewidth=0.0, label="95 % band")
axes.plot(fine, value, label="fit")
axes.set(xlabel="time", ylabel="signal", title="Two decays")
axes.legend()
plt.show()

# %%
# The intervals of the two rates, by the residual sum along each of them.
print(fit.interval(0.95, "profile", names=["slow", "fast"], absolute_sigma=True))
