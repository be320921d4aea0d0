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


def one_level(train):
    return xv.separable(features, Y[train], data=Z[train], lam=0.02)


def two_levels(train):
    first, second = train[::2], train[1::2]
    lower = xv.Level(lambda theta, data: features(theta, data[0]), Y[first], lam=0.02)
    upper = xv.Level(lambda theta, data: features(theta, data[1]), Y[second])
    return xv.bilevel(lower=lower, upper=upper, data=[Z[first], Z[second]])


# %%
# Each of 20 episodes has two examples of each class, and other digits to test on, from one half of the digits. On the
# other half the frozen features are most accurate with the ridge above.

names = ["frozen features", "one level, default", "two levels, default", "two levels, CR-VarPro\n(the paper)"]
accuracy = np.zeros((4, 20))
for seed in range(20):
    order = np.random.default_rng(seed).permutation(np.arange(1, len(Z), 2))
    train = np.concatenate([order[classes[order] == c][:2] for c in range(5)])
    test = np.setdiff1d(order, train)
    one, two = one_level(train), two_levels(train)
    solves = [(one, None), (two, None), (two, xv.algorithms.cr_varpro())]
    fits = [xv.solve(problem, theta0, algorithm=method, max_iter=30) for problem, method in solves]
    ends = [(theta0, xv.solve_lower(one, theta0).w), *((fit.theta, fit.w) for fit in fits)]
    accuracy[:, seed] = [100 * np.mean((features(theta, Z[test]) @ w).argmax(1) == classes[test]) for theta, w in ends]

# %%

figure, ax = plt.subplots(figsize=(7.5, 3.2))
for i, gain in enumerate(accuracy[1:] - accuracy[0]):
    mean, reach = gain.mean(), student.ppf(0.975, 19) * gain.std(ddof=1) / 20**0.5
    ax.plot(gain, i + np.linspace(-0.2, 0.2, 20), "o", color=f"C{i}", alpha=0.5)
    ax.errorbar(mean, i, xerr=reach, fmt="D", color="k", markersize=5, capsize=4)
    print(f"{' '.join(names[i + 1].split())}: {accuracy[i + 1].mean():.1f} %, gain {mean:+.1f} +- {reach:.1f} points")
ax.axvline(0.0, color="0.5")
ax.text(0.0, -0.5, f" frozen features: {accuracy[0].mean():.0f} %", color="0.4")
ax.set(yticks=range(3), yticklabels=names[1:], ylim=(2.5, -0.8))
ax.set(
    xlabel="accuracy over that of frozen features, percentage points",
    title="Moving the last layer pays: 20 episodes, mean and 95 % interval",
)
ax.grid(axis="y", visible=False)
plt.show()
