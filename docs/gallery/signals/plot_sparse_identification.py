"""
Laws of motion whose terms have parameters
==========================================

Which law governs an enzyme that is fed at a constant rate? Sparse identification (SINDy) chooses a few terms of a
library, with coefficients by least squares. The law of Michaelis and Menten, ``x / (K + x)``, is in a library only for
known K. Here K and the rate of an exponential are found with the coefficients. The figure shows both laws, and where a
run from a start that was not seen ends.
"""

# %%
# Ten runs of the substrate, each from another start. Noise makes derivatives useless, so that the law is taken in its
# integrated form: each run is its start plus the integral of the law along it (weak SINDy).

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp

import xvarpro as xv


def law(x):
    return 0.6 - 1.5 * x / (0.3 + x)


rng = np.random.default_rng(0)
t, starts = np.linspace(0.0, 4.0, 81), np.linspace(0.02, 2.0, 10)
runs = np.stack([solve_ivp(lambda _, x: law(x), (0, 4), [x0], t_eval=t, rtol=1e-8).y[0] for x0 in starts])
x = runs + 0.01 * rng.normal(size=runs.shape)
trapezoid = np.tril(np.ones((81, 81))) * (t[1] - t[0])
trapezoid[:, 0] /= 2
trapezoid -= np.eye(81) * (t[1] - t[0]) / 2
trapezoid[0] = 0.0
data = {"x": x, "integral": trapezoid, "starts": np.kron(np.eye(10), np.ones((81, 1)))}

# %%
# A library of powers and two terms with a parameter, K and a rate. Of all laws with up to
# three terms, that with the lowest criterion of Bayes (BIC) is taken.

NAMES = np.array(["1", "x", "x^2", "x^3", "x / (K + x)", "exp(-k x)"])
START = {"K": np.array(1.0), "k": np.array(1.0)}
BOXES = {"K": xv.sets.Box(0.05, 5.0), "k": xv.sets.Box(0.1, 10.0)}


def fitted(terms):
    """The criterion of a law with these terms, its parameters, and its coefficients."""

    def M(theta, data):
        xp, x = xv.array_namespace(data["x"]), data["x"]
        made = [x**i for i in terms if i < 4]
        made += [x / (theta["K"] + x)] if 4 in terms else []
        made += [xp.exp(-theta["k"] * x)] if 5 in terms else []
        integrals = [xp.reshape(each @ data["integral"].T, (-1, 1)) for each in made]
        return xp.concat([*integrals, data["starts"]], axis=1)

    inside = [name for name, i in (("K", 4), ("k", 5)) if i in terms]
    problem = xv.separable(M, x.ravel(), data=data)
    if inside:
        fit = xv.solve(problem, {name: START[name] for name in inside}, over={name: BOXES[name] for name in inside})
        theta, w, value = fit.theta, fit.w, fit.value
    else:
        theta, (w, squares, *_) = {}, np.linalg.lstsq(M({}, data), x.ravel())
        value = squares[0] / 2
    return x.size * np.log(2 * value / x.size) + (len(terms) + len(inside)) * np.log(x.size), theta, w


laws = {each: fitted(each) for n in (1, 2, 3) for each in combinations(range(6), n)}
ranked = sorted(laws, key=lambda each: laws[each][0])
laws |= {each: fitted(each) for n in (1, 2, 3, 4) for each in combinations(range(4), n)}
powers = min((each for each in laws if max(each) < 4), key=lambda each: laws[each][0])


def written(terms):
    criterion, theta, w = laws[terms]
    sum_ = " ".join(f"{c:+.3f} {term}" for c, term in zip(w, NAMES[list(terms)], strict=False))
    return (
        f"x' = {sum_}" + "".join(f", {key} = {value:.3f}" for key, value in theta.items()) + f" (BIC {criterion:.1f})"
    )


for terms in ranked[:3]:
    print(written(terms))
print(f"powers alone, up to four: {written(powers)}")
print("the truth: x' = +0.600 1 -1.500 x / (K + x), K = 0.300")

# %%
# The laws, and what they say of a run from a start outside of the data, at 4. Within the data both follow the truth.


def rate(terms, x):
    _, theta, w = laws[terms]
    made = [1.0, x, x**2, x**3, x / (theta.get("K", 1.0) + x), np.exp(-theta.get("k", 1.0) * x)]
    return sum(c * made[i] for c, i in zip(w, terms, strict=False))


fine, after = np.linspace(0.0, 4.0, 200), np.linspace(0.0, 8.0, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4))
left.axvspan(0.0, 2.0, color="0.94")
left.text(1.0, -1.9, "data", color="0.5", ha="center")
for name, of, look in (
    ("truth", law, {"color": "0.3", "linewidth": 4.0, "alpha": 0.4}),
    ("powers", lambda x: rate(powers, x), {"color": "#d55e00"}),
    ("K inside its term", lambda x: rate(ranked[0], x), {"color": "#0072b2"}),
):
    left.plot(fine, [of(x) for x in fine], label=name, **look)
    run = solve_ivp(lambda _, x, of=of: [of(x[0])], (0, 8), [4.0], t_eval=after, events=lambda _, x: x[0] + 1.0).y[0]
    right.plot(after[: run.size], run, label=name, **look)
left.set(xlabel="x", ylabel="x'", title="The law", ylim=(-2.1, 0.8))
right.set(xlabel="time", ylabel="x", title="A run from a start outside of the data", ylim=(-1.0, 6.0))
right.legend()
plt.show()
