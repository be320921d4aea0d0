"""
How much ridge? The data decide
===============================

How smooth should a trend be that the data do not show by itself? Here it lies under an oscillation of unknown frequency
and noise. Two ways to choose the ridge on its curvature are compared: generalised cross-validation, ridge by ridge, and
the error of data that were left out, which the upper level of a bilevel problem minimises by its exact gradient.
"""

# %%
# A trend and one oscillation, at 150 times that are not evenly spaced.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(3)
t = (np.arange(150) + rng.uniform(0.0, 1.0, 150)) / 15
knots = np.linspace(0.0, 10.0, 50)
trend = np.exp(-0.5 * (t - 3) ** 2) + 0.8 / (1 + np.exp(-3 * (t - 7)))
y = trend + 0.5 * np.sin(2 * np.pi * 1.3 * t) + 0.3 * rng.normal(size=t.size)

# %%
# The trend joins values at knots, whose second differences ``Omega`` takes. It has to be invertible, hence small
# entries for both ends, cosine and sine.

hats = np.maximum(1 - np.abs(t[:, None] - knots) / (knots[1] - knots[0]), 0.0)
Omega = np.zeros((52, 52))
Omega[:48, :50] = np.diff(np.eye(50), 2, axis=0)
Omega[[48, 49, 50, 51], [0, 49, 50, 51]] = 1e-3


def M(frequency, data):
    xp = xv.array_namespace(frequency)
    return xp.concat([data["hats"], xv.models.oscillations(data["t"], frequency)], axis=1)


# %%
# ``ridge_path`` looks at one ridge after the other, and takes the one of the least generalised cross-validation.
# ``cross_validate`` leaves out a fifth of the data in turn, and searches for the ridge and the frequency that predict
# them best.

problem = xv.separable(M, y, data={"t": t, "hats": hats}, Omega=Omega)
start, box = np.array(1.25), xv.sets.Box(1.0, 1.6)
path = xv.statistics.ridge_path(problem, start, box, lam=np.geomspace(1e-3, 1e4, 15))
cv = xv.statistics.cross_validate(problem, start, box, lam=(1e-3, 1e4))
print(path)
print(cv, f"frequency {cv.fit.theta:.3f} Hz", sep="\n")

# %%
# Both scores, and the trends with three ridges.

figure, (score, curves) = plt.subplots(1, 2, figsize=(9.0, 3.3), width_ratios=[1, 1.4])
score.semilogx(path.lam, path.gcv / path.gcv.min(), color="#d55e00")
score.semilogx(cv.looked, cv.errors / cv.error, color="#0072b2")
score.plot(path.lam[path.best], 1.0, "o", color="#d55e00")
score.plot(cv.lam, 1.0, "o", color="#0072b2")
score.annotate("generalised\ncross-validation", (1.2e-3, 1.02), color="#d55e00")
score.annotate("error of data\nleft out", (5e-2, 1.6), color="#0072b2")
score.set(xlabel="ridge λ", ylabel="score over its least value", title="Both scores are least in between")
curves.plot(t, y, ".", color="0.8", markersize=4)
for fit in (path.fits[0], path.fits[-2]):
    curves.plot(knots, fit.w[:50], color="0.6")
curves.plot(knots, path.fits[path.best].w[:50], color="#d55e00", linewidth=3.5)
curves.plot(knots, cv.fit.w[:50], color="#0072b2")
curves.plot(t, trend, "--", color="k", linewidth=1)
curves.set(xlabel="time (s)", ylabel="signal", title="Trends: too much ridge, too little, and as chosen")
plt.show()
