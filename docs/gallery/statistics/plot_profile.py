"""
Confidence intervals where linear theory fails
==============================================

How far can the rates of two decays be trusted that few, noisy data hardly tell apart? Linear theory gives intervals
that are symmetric; the profile of the objective asks how well the data can be fitted with a rate held elsewhere. Where
the curves of the first figure bend, both differ; the second figure shows by how much.
"""

# %%
# Twenty data of two decays whose rates differ by a factor of four, with noise of 0.05. The sets of the rates do not
# overlap, so that a profile does not exchange them.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

truth = np.array([0.5, 2.0])
t = np.linspace(0.0, 4.0, 20)
y = xv.models.exponentials(t, truth) @ [1.0, 1.0] + 0.05 * np.random.default_rng(2).normal(size=t.size)


def M(rates, data):
    return xv.models.exponentials(data["t"], rates)


problem = xv.separable(M, y, data={"t": t})
fit = xv.solve(problem, np.array([0.3, 3.0]), over=xv.sets.Box([0.01, 1.0], [1.0, 20.0]))
print(fit.report(["slow", "fast"], ["slow amplitude", "fast amplitude"]))

# %%
# Both kinds of intervals. A profile fits again with a rate held at one value after the other, all of them in one batch.

linear = fit.interval(0.95, "linear", names=["slow", "fast"])
profile = fit.interval(0.95, "profile", names=["slow", "fast"])
print(linear)
print(profile)

# %%
# The profile t is the root of by how much the objective rises, in units of the noise. For a linear model it is the grey
# line; the interval ends where the curve meets the dashed lines.

figure = plt.figure(figsize=(9.0, 3.4))
figure.suptitle("Where the profile bends, intervals of linear theory are off", x=0.02, ha="left")
for part, entry, name in zip(figure.subfigures(1, 2), (0, 1), ("slow", "fast"), strict=True):
    fit.plot_profile(entry, width=3.5, xlabel=f"{name} rate (1/s)", figure=part)

# %%
# The intervals of both, with the truth.

figure, axes = plt.subplots(1, 2, figsize=(7.0, 1.9), sharey=True)
for j, (ax, name) in enumerate(zip(axes, ("slow", "fast"), strict=True)):
    for row, (found, colour) in enumerate(((linear, "0.6"), (profile, "#0072b2"))):
        ax.plot([found.lower[j], found.upper[j]], [row, row], color=colour, linewidth=4, solid_capstyle="butt")
        ax.plot(found.value[j], row, "o", color=colour, markeredgecolor="w")
    ax.axvline(truth[j], color="0.3", linewidth=1, linestyle="--")
    ax.set(xlabel=f"{name} rate (1/s)", yticks=[0, 1], yticklabels=["linear theory", "profile"], ylim=(1.6, -0.6))
axes[0].set_title("95 % intervals: the profile's are not symmetric; dashed: truth")
plt.show()
