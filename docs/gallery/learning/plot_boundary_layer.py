"""
A boundary layer by a few trained features
==========================================

Can a network with one hidden layer solve a differential equation? With random features and a solved last layer it can,
if there are enough of them where the solution is steep. Here the features move as well, while the last layer is solved
for at every step. The figure shows the solution with both, and the error by the number of features.
"""

# %%
# Transport with little diffusion, ``-e u'' + u' = 1`` with u = 0 at both ends, whose solution is known: it falls within
# a layer of width e = 0.05.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

e = 0.05
x = (1 - np.cos(np.pi * np.linspace(0.0, 1.0, 200))) / 2  # denser at the ends


def exact(x):
    return x - (np.exp((x - 1) / e) - np.exp(-1 / e)) / (1 - np.exp(-1 / e))


# %%
# Features tanh(a (x - c)). The design has a row for the equation in each point, and one for each end.


def M(theta, data):
    xp = xv.array_namespace(theta["c"])
    a = xp.exp(theta["log_a"])
    h = xp.tanh(a * (data["x"][:, None] - theta["c"]))
    ends = xp.tanh(a * (data["ends"][:, None] - theta["c"]))
    slope = a * (1 - h**2)
    equation = slope * (1 + 2 * e * a * h)
    return xp.concat([equation, 100.0 * ends], axis=0)


y = np.concatenate([np.ones(200), np.zeros(2)])
problem = xv.separable(M, y, data={"x": x, "ends": np.array([0.0, 1.0])}, lam=1e-12)
over = {"c": xv.sets.Box(-1.0, 2.0), "log_a": xv.sets.Box(-3.0, 6.0)}
fine = np.linspace(0.0, 1.0, 2000)


def random(n, seed):
    rng = np.random.default_rng(seed)
    return {"c": rng.uniform(0.0, 1.0, n), "log_a": rng.uniform(0.0, 3.5, n)}


def solution(theta, w):
    return np.tanh(np.exp(theta["log_a"]) * (fine[:, None] - theta["c"])) @ w


def off(theta, w):
    return np.abs(solution(theta, w) - exact(fine)).max()


for n in (4, 6, 8, 12, 16):
    errors = []
    for seed in range(3):
        fit = xv.solve(problem, random(n, seed), over=over, tol=1e-6, max_iter=60)
        errors.append((off(fit.theta, fit.w), fit.status.name, fit.n_iter))
    print(n, errors)
for n in (8, 16, 32, 64, 128):
    print(n, [off(t := random(n, seed), xv.solve_lower(problem, t).w) for seed in range(5)])
