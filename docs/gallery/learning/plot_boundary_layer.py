"""
A boundary layer by a few trained features
==========================================

Can a network with one hidden layer solve a differential equation? With random features and a solved last layer it can,
if there are enough of them where the solution is steep. Here the features move as well, while the last layer is solved
for at every step. The figure shows the solution by eight features of either kind, and the errors by their number.
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


def trained(n, seed):
    fit = xv.solve(problem, random(n, seed), over=over, max_iter=50)
    return fit.theta, fit.w


def drawn(n, seed):
    theta = random(n, seed)
    return theta, xv.solve_lower(problem, theta).w


numbers = {"trained": (trained, (4, 8, 12)), "random": (drawn, (4, 8, 16, 32, 64))}
errors = {name: np.array([[off(*of(n, seed)) for seed in range(3)] for n in ns]) for name, (of, ns) in numbers.items()}
for name, (_, ns) in numbers.items():
    for n, each in zip(ns, errors[name], strict=True):
        print(f"{n:3} {name} features: errors {', '.join(f'{one:.1e}' for one in each)}")

# %%
# In the median eight trained features are better than 32 random ones. To draw 64 and solve once is cheaper, and more
# exact: it pays to train where the solution is kept and evaluated often. Some starts end in local minima.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6))
left.plot(fine, exact(fine), color="0.3", linewidth=4.0, alpha=0.4, label="exact")
colours = {"trained": "#0072b2", "random": "#d55e00"}
for name, (of, ns) in numbers.items():
    left.plot(fine, solution(*of(8, 0)), color=colours[name], label=f"8 {name} features")
    for seed in range(3):
        right.loglog(ns, errors[name][:, seed], ".", color=colours[name], markersize=7)
    right.plot(ns, np.median(errors[name], axis=1), color=colours[name], label=name)
left.set(xlabel="x", ylabel="u", title="Transport, and a layer at the end", ylim=(-0.05, 1.0))
left.legend(loc="upper left")
right.set(xlabel="features", ylabel="largest error", title="Three draws each, and their medians")
right.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
right.minorticks_off()
right.legend()
plt.show()
