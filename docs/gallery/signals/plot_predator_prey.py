"""
A differential equation with SciPy's solver inside
==================================================

Hares and lynxes in Canada rise and fall in turn. The equations of Lotka and Volterra have six unknowns, of which two
are only scales: how many pelts make a unit of hares, and of lynxes. These are solved for; SciPy integrates the
equations for the other four. The figure shows the fit, and where it ends from three starts, next to SciPy's
``least_squares`` on all six unknowns.
"""

# %%
# Thousands of pelts that the Hudson's Bay Company bought from 1900 to 1920, in Hewitt's table of 1921.

import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import xvarpro as xv

HARE = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNX = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
hare, lynx = (np.array(line.split(), dtype=float) for line in (HARE, LYNX))
years = np.arange(21.0)
integrations = 0


def solution(p, t=years, sensitivities=False):
    """Hares u and lynxes v, (2, times), in units in which both are 1 in balance; p: two rates, u and v at the start.

    With `sensitivities` (10, times): behind them their derivatives by p, which the same solver integrates.
    """
    global integrations
    integrations += 1
    a, c, *start = p

    def slopes(_, z):
        u, v = z[:2]
        du, dv = a * u * (1 - v), -c * v * (1 - u)
        if not sensitivities:
            return [du, dv]
        Su, Sv = z[2:6], z[6:]
        dSu, dSv = a * (1 - v) * Su - a * u * Sv, c * v * Su - c * (1 - u) * Sv
        dSu[0] += u * (1 - v)
        dSv[1] -= v * (1 - u)
        return np.concatenate([[du, dv], dSu, dSv])

    if sensitivities:
        start = np.concatenate([start, np.eye(4)[2], np.eye(4)[3]])
    return solve_ivp(slopes, (t[0], t[-1]), start, t_eval=t, method="LSODA", rtol=1e-8, atol=1e-8).y


# %%
# ``xv.special.external`` calls SciPy's solver inside of the model, and takes its Jacobian from the sensitivities that
# are integrated along. Without a Jacobian it takes differences.


def jacobian(p):
    return np.moveaxis(solution(p, sensitivities=True)[2:].reshape(2, 4, -1), 1, 2)


def M(p, _):
    xp = xv.array_namespace(p)
    found = xv.special.external(solution, p, jacobian)
    u, v, zero = found[0, :], found[1, :], xp.zeros_like(found[0, :])
    return xp.stack([xp.concat([u, zero]), xp.concat([zero, v])], axis=1)


pelts = np.concatenate([hare, lynx])
problem, over = xv.separable(M, pelts), xv.sets.Box(0.05, 3.0)
fit = xv.solve(problem, np.array([0.6, 0.8, 1.0, 0.3]), over=over)
print(fit.report(["rate of hares", "rate of lynxes", "hares in 1900", "lynxes in 1900"], ["hares", "lynxes"]))

# %%
# From other starts, both ways. Six unknowns need starts of the scales as well: here 1, and a good guess, 30.


def counted(run, *args):
    """A run's objective, and its integrations."""
    global integrations
    integrations = 0
    return float(run(*args)), integrations


def separate(start):
    return xv.solve(problem, start, over=over).value


def joint(start, scale):
    bounds = [0.05] * 4 + [0.0] * 2, [3.0] * 4 + [np.inf] * 2
    at = np.append(start, [scale, scale])
    return least_squares(
        lambda q: (solution(q[:4]) * q[4:, None]).ravel() - pelts, at, x_scale="jac", bounds=bounds
    ).cost


ends = {"scales solved for": [], "six unknowns, scales from 1": [], "six unknowns, scales from 30": []}
for start in np.random.default_rng(1).uniform([0.3, 0.3, 0.2, 0.2], [1.2, 1.2, 2.0, 2.0], size=(3, 4)):
    ends["scales solved for"].append(counted(separate, start))
    ends["six unknowns, scales from 1"].append(counted(joint, start, 1.0))
    ends["six unknowns, scales from 30"].append(counted(joint, start, 30.0))
for name, each in ends.items():
    right = sum(value < 300.0 for value, _ in each)
    print(f"{name:>28}: {right} of {len(each)} starts, {np.mean([n for _, n in each]):.0f} integrations on average")

# %%
# Scales that are solved for need no start. An integration with sensitivities has ten equations, one for SciPy's
# differences has two.

fine = np.linspace(0.0, 20.0, 200)
curves = solution(fit.theta, fine) * fit.w[:, None]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), width_ratios=(1.6, 1))
for name, data, curve, colour in (("hares", hare, curves[0], "#0072b2"), ("lynxes", lynx, curves[1], "#d55e00")):
    left.plot(1900 + years, data, "o", color=colour)
    left.plot(1900 + fine, curve, color=colour)
    left.annotate(name, (1900 + fine[np.argmax(curve)] + 4.5, 0.6 * curve.max()), color=colour, ha="center")
left.set(xlabel="year", ylabel="pelts (thousands)", title="Four parameters, two scales", xticks=range(1900, 1921, 5))
for (name, each), colour in zip(ends.items(), ("#0072b2", "#e69f00", "0.5"), strict=True):
    values, counts = np.array(each).T
    right.semilogy(counts, values, "o", color=colour, alpha=0.8, label=name.replace(", ", ",\n"))
right.set(xlabel="integrations", ylabel="objective", title="Where three starts end", ylim=(200.0, 12000.0))
right.set_yticks([300, 1000, 3000, 10000], ["300", "1000", "3000", "10000"], minor=False)
right.minorticks_off()
right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
plt.show()
