"""
Two examples of each new class
==============================

A network knows the digits 0 to 4, and two examples of each of the other digits arrive. Does it pay to move its last
layer, and not only to fit a new head? Methods are compared episode by episode, since episodes differ more than
methods do. The figure shows what each gains over a head on frozen features, with the mean and its confidence
interval.
"""

# %%
# The network has three tanh layers. Two of them stay as they are: Z is what they make of the digits 5 to 9. The third
# is theta, and the head is the eliminated variable.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import t as student
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import xvarpro as xv

X, label = load_digits(return_X_y=True)
X, known = X / 16.0, label < 5
network = MLPClassifier((128, 64, 64), activation="tanh", max_iter=1000, random_state=0).fit(X[known], label[known])
Z, classes = X[~known], label[~known] - 5
for A, b in zip(network.coefs_[:2], network.intercepts_[:2], strict=True):
    Z = np.tanh(Z @ A + b)
theta0 = {"A": network.coefs_[2], "b": network.intercepts_[2]}
Y = np.eye(5)[classes] - 0.2


def features(theta, Z):
    return xv.array_namespace(theta).tanh(Z @ theta["A"] + theta["b"])


# %%
# One level fits layer and head to both examples of each class. The paper has two levels: the head is fitted to the
# first examples, and the layer to what that head makes of the second.


def one_level(train, lam):
    return xv.separable(features, Y[train], data=Z[train], lam=lam)


def two_levels(train, lam):
    first, second = train[::2], train[1::2]
    lower = xv.Level(lambda theta, data: features(theta, data[0]), Y[first], lam=lam)
    upper = xv.Level(lambda theta, data: features(theta, data[1]), Y[second])
    return xv.bilevel(lower=lower, upper=upper, data=[Z[first], Z[second]])


# %%
# An episode has two examples of each class, and other digits to test on. Half of the digits choose the ridge, for
# which the frozen features are most accurate; it is that of all methods. The other half are for the comparison.


def episodes(half, n):
    for seed in range(n):
        order = np.random.default_rng(seed).permutation(np.arange(half, len(Z), 2))
        train = np.concatenate([order[classes[order] == c][:2] for c in range(5)])
        yield train, np.setdiff1d(order, train)


def right(theta, w, test):
    return 100.0 * np.mean(np.argmax(features(theta, Z[test]) @ w, axis=1) == classes[test])


def frozen(train, test, lam):
    return right(theta0, xv.solve_lower(one_level(train, lam), theta0).w, test)


ridges = [0.002, 0.02, 0.2, 2.0]
lam = max(ridges, key=lambda lam: np.mean([frozen(*episode, lam) for episode in episodes(0, 10)]))
base = np.array([frozen(*episode, lam) for episode in episodes(1, 20)])
print(f"ridge {lam}: frozen features are right in {base.mean():.1f} %, from {base.min():.1f} to {base.max():.1f} %")

# %%
# Each method has 30 iterations in each of 20 episodes.

figure, ax = plt.subplots(figsize=(7.5, 3.2))
names = ["one level, default", "two levels, default", "two levels, CR-VarPro\n(the paper)"]
methods = [(one_level, None), (two_levels, None), (two_levels, xv.algorithms.cr_varpro())]
for i, (problem, algorithm) in enumerate(methods):
    accuracy = []
    for train, test in episodes(1, 20):
        fit = xv.solve(problem(train, lam), theta0, algorithm=algorithm, max_iter=30)
        accuracy.append(right(fit.theta, fit.w, test))
    gain = np.array(accuracy) - base
    mean, reach = gain.mean(), student.ppf(0.975, gain.size - 1) * gain.std(ddof=1) / gain.size**0.5
    print(f"{' '.join(names[i].split())}: {np.mean(accuracy):.1f} %, gain {mean:+.1f} +- {reach:.1f} points")
    ax.plot(gain, i + np.linspace(-0.2, 0.2, gain.size), "o", color=f"C{i}", alpha=0.5)
    ax.errorbar(mean, i, xerr=reach, fmt="D", color="k", markersize=5, capsize=4)
ax.axvline(0.0, color="0.5")
ax.text(0.0, -0.5, " frozen features", color="0.4")
ax.set(yticks=range(3), yticklabels=names, ylim=(2.5, -0.8))
ax.set(
    xlabel="accuracy over that of frozen features, percentage points",
    title="Moving the last layer pays: 20 episodes, mean and 95 % interval",
)
ax.grid(axis="y", visible=False)
plt.show()
