"""
Three decays with an instrument response, fitted together
=========================================================

How well are two rates known from three measurements of one process? Each trace has amplitudes and a time zero of its
own, one has a gap and one has fewer samples; what they share is the rates and the width of the instrument response.
The first figure shows the common fit, the second how much better it knows the rates than a fit of one trace alone.
"""

# %%
# Two decays, rounded off by a Gaussian response. Amplitudes may have either sign.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(1)
t = [np.linspace(-1.0, 6.0, 180), np.linspace(-1.0, 6.0, 180), np.linspace(-1.0, 8.0, 110)]
zero, amplitudes = [0.0, 0.12, -0.07], [[1.0, 0.5], [0.3, 1.0], [-0.4, 0.8]]
y = [xv.models.decays(t[i], np.array([2.0, 0.5]), zero[i], 0.12) @ amplitudes[i] for i in range(3)]
y = [trace + 0.02 * rng.normal(size=trace.size) for trace in y]
y[1][60:90] = np.nan  # a stretch that was not measured

# %%
# Parameters have names, starts and bounds; time begins at the zero of the first trace, which is therefore held. The
# design has a block for each trace. Data that are missing have the weight 0.


def fit_of(traces, rates):
    """A fit of some of the traces with common rates, from a start of these."""
    p = xv.Parameters()
    p.add("rates", rates, min=0.01, max=20.0)
    p.add("width", 0.3, min=0.01, max=1.0)
    p.add("zero", [0.0] * len(traces), vary=[i > 0 for i in traces])

    def M(p, t):
        blocks = [xv.models.decays(t[i], p["rates"], p["zero"][i], p["width"]) for i in range(len(t))]
        return xv.operators.BlockDiagonal(blocks)

    target = np.concatenate([y[i] for i in traces])
    problem = xv.separable(p.model(M), target, data=[t[i] for i in traces], weights=np.isfinite(target))
    return p, xv.solve(problem, p.theta0, over=p.over)


p, fit = fit_of([0, 1, 2], rates=[1.0, 0.2])
print(fit.report(p, [f"{decay} {i}" for i in range(3) for decay in ("fast", "slow")]))

# %%
# Data, fit, its two decays and the residuals. A component has one colour in all panels.

figure = plt.figure(figsize=(9, 4))
figure.suptitle("One pair of rates fits all three traces", x=0.05, ha="left")
fit.plot_fit(xlabel="time (ns)", ylabel="signal (V)", names=["fast", "slow"] * 3, figure=figure)

# %%
# The same fit of one trace after the other, from the rates that they have in common. The third trace, in which the fast
# decay is small and negative, hardly knows its rate.

alone = [fit_of([i], fit.theta["rates"])[1] for i in range(3)]
names = ["trace 0 alone", "trace 1 alone", "trace 2 alone", "all together"]
figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.6), sharey=True)
for j, (ax, truth, which) in enumerate(zip(axes, (2.0, 0.5), ("fast", "slow"), strict=True)):
    ax.axvline(truth, color="0.3", linewidth=1, linestyle="--")
    for row, (name, one) in enumerate(zip(names, [*alone, fit], strict=True)):
        rate, error = one.theta["rates"][j], one.statistics().theta_stderr["rates"][j]
        ax.errorbar(rate, row, xerr=error, fmt="o", capsize=3, color="#0072b2" if one is fit else "0.6")
        print(f"{name}: {which} rate {rate:.3f} +- {error:.3f} per ns ({one.status.name})")
    ax.set(xlabel=f"{which} rate (1/ns)")
axes[0].set(yticks=range(4), yticklabels=names, ylim=(3.5, -0.5))
axes[0].set_title("Estimates with standard errors: together the traces know both rates best; dashed: truth")
plt.show()
