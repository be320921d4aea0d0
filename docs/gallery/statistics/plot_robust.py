"""
Outliers, and counts
====================

What becomes of a fit when some data are wrong, or when the data are counts? Least squares believes every datum equally;
another loss lets outliers go, and the likelihood of Poisson's distribution knows how noisy a count is. The first figure
shows the outliers that a robust fit found by itself, the second a curve that least squares puts below its counts.
"""

# %%
# Two decays with noise of 0.02, and 20 data in 200 that are far too high.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
truth = np.array([1.0, 5.0])
t = np.linspace(0.0, 2.0, 200)
clean = xv.models.exponentials(t, truth) @ [2.0, 1.0]
y = clean + 0.02 * rng.normal(size=t.size)
y[rng.choice(t.size, 20, replace=False)] += rng.uniform(0.2, 1.2, 20)


def M(rates, t):
    return xv.models.exponentials(t, rates)


problem, theta0, over = xv.separable(M, y, data=t), np.array([0.5, 8.0]), xv.sets.Box(0.01, 40.0)
plain = xv.solve(problem, theta0, over=over)
robust = xv.solve_robust(problem, theta0, over=over, loss=xv.losses.Cauchy())
errors = robust.statistics().theta_stderr
print(f"truth {truth}, least squares {plain.theta.round(2)}")
print(f"robust {robust.theta.round(2)} +- {errors.round(2)}, scale {robust.loss.scale:.3f}, from the residuals")

# %%
# The loss gives every datum a weight; where it is small the datum hardly counts.

out = robust.weights < 0.1
print(f"{np.sum(out)} data have weights below 0.1")
figure, ax = plt.subplots(figsize=(6.4, 3.4))
ax.plot(t[~out], y[~out], ".", color="0.75", markersize=4)
ax.plot(t[out], y[out], "o", color="#d55e00", markersize=4, fillstyle="none")
ax.plot(t, plain.fitted, color="0.4")
ax.plot(t, robust.fitted, color="#0072b2", linewidth=3)
ax.plot(t, clean, "--", color="w", linewidth=1)
ax.annotate("left out", (1.5, 1.72), color="#d55e00")
ax.annotate("least squares", (0.42, 1.75), color="0.4")
ax.annotate("robust, on the truth (dashed)", (0.05, 0.45), color="#0072b2")
ax.set(xlabel="time (s)", ylabel="signal", title="A robust fit finds the outliers and leaves them out")

# %%
# Counts of a decay on a background, some thirty at first and one or two at the end. Least squares with the usual
# weights, one over the count, takes low counts for exact ones, so that its curve lies below the data. Poisson's
# likelihood keeps their sum.


def on_background(rates, t):
    xp = xv.array_namespace(rates)
    return xp.concat([xv.models.exponentials(t, rates), xp.ones_like(t[:, None])], axis=1)


t = np.linspace(0.0, 4.0, 60)
mean = on_background(np.array([1.0]), t) @ [30.0, 1.5]
counts = np.random.default_rng(7).poisson(mean)
given = {"data": t, "W": xv.lower.Nonnegative()}
weighted = xv.separable(on_background, counts, weights=1 / np.maximum(counts, 1.0), **given)
start, box = np.array([0.7]), xv.sets.Box(0.05, 20.0)
squares = xv.solve(weighted, start, over=box)
poisson = xv.solve_robust(xv.separable(on_background, counts, **given), start, over=box, loss=xv.losses.Poisson())
for name, fit in {"weights 1 / count": squares, "Poisson": poisson}.items():
    print(f"{name}: rate {fit.theta[0]:.2f}, {fit.fitted.sum():.0f} of {counts.sum()} counts in the fit")

figure, ax = plt.subplots(figsize=(6.4, 3.4))
ax.plot(t, counts, ".", color="0.7")
ax.plot(t, squares.fitted, color="0.4")
ax.plot(t, poisson.fitted, color="#0072b2", linewidth=3)
ax.plot(t, mean, "--", color="w", linewidth=1)
ax.annotate("Poisson, near the truth (dashed)", (1.35, 12), color="#0072b2")
ax.annotate("weights 1 / count", (0.3, 5), color="0.4")
ax.set_yscale("function", functions=(np.sqrt, np.square))
ax.set(xlabel="time (s)", ylabel="counts, on a scale of roots", ylim=(0, 40), yticks=[0, 1, 5, 10, 20, 40])
ax.set_title("Weights of 1 / count pull the curve below the data")
plt.show()
