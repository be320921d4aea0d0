"""
Blind deconvolution: spikes behind an unknown kernel
====================================================

Twenty recordings are sparse spikes that one unknown kernel has blurred. Can both be found from the recordings alone?
The figure shows the kernel and the spikes that come out where the spikes lie in an l1 ball, next to those of a
Euclidean ball, which fits the recordings too and finds the wrong kernel.
"""

# %%
# The recordings are made here: 8 % of the samples hold a spike, the kernel rises faster than it falls, and there is
# noise of 2 %.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
n, length = 20, 128
spikes = rng.normal(size=(n, length)) * (rng.random((n, length)) < 0.08)
t = np.arange(length) - length // 2
kernel = np.fft.ifftshift(np.exp(-0.5 * (t / np.where(t < 0, 1.5, 5.0)) ** 2))
Y = np.fft.irfft(np.fft.rfft(spikes) * np.fft.rfft(kernel), length)
Y = Y + 0.02 * Y.std() * rng.normal(size=Y.shape)

# %%
# Given the spikes X, the kernel w is a linear least-squares problem, which division of spectra solves: it is
# eliminated. ``StackedCirculant(X)`` has a circulant matrix for each recording. X is theta, and starts at the
# recordings themselves. A factor may move from X to w, so that the radius is no more than a choice of units; the
# ridge is stated in units of the start.


def design(X, data):
    return xv.operators.StackedCirculant(X)


sizes = {"Euclidean ball": np.linalg.norm(Y), "l1 ball": np.abs(Y).sum()}
balls = {"Euclidean ball": xv.sets.L2Ball(1.0), "l1 ball": xv.sets.L1Ball(1.0)}
fits = {}
for name, ball in balls.items():
    lam = 0.1 * np.sum(Y**2) / sizes[name] ** 2
    problem = xv.separable(design, Y.reshape(-1), lam=lam)
    fits[name] = xv.solve(problem, Y / sizes[name], over=ball, max_iter=500)

# %%
# A shift and a sign may move between kernel and spikes as well. For the comparison alone they are taken from the true
# kernel.

found = {}
for name, fit in fits.items():
    products = np.fft.irfft(np.fft.rfft(fit.w) * np.conj(np.fft.rfft(kernel)), length)
    shift = np.argmax(abs(products))
    sign = np.sign(products[shift])
    cosine = abs(products[shift]) / (np.linalg.norm(fit.w) * np.linalg.norm(kernel))
    found[name] = sign * np.roll(fit.w, -shift), sign * np.roll(fit.theta, shift, axis=1)
    left = np.linalg.norm(fit.residuals) / np.linalg.norm(Y)
    print(f"{name}: residual {left:.1%} of the recordings, cosine of the kernel and the true one {cosine:.3f}")

# %%
# Each line is divided by its largest value.

colors = {"Euclidean ball": "0.6", "l1 ball": "#0072b2"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 3.8), width_ratios=[0.8, 1.2])
for name, (w, _) in found.items():
    left.plot(t, np.fft.fftshift(w / w.max()), color=colors[name], linewidth=2.2)
left.plot(t, np.fft.fftshift(kernel), color="k", linestyle=":", linewidth=1.6)
left.text(9, 0.62, "true: dotted", color="k")
left.text(9, 0.52, "l1 ball", color="#0072b2")
left.text(9, 0.42, "Euclidean ball", color="0.45")
left.set(xlabel="sample", ylabel="kernel / its largest value", xlim=(-25, 35))
left.set_title("The l1 ball finds the kernel")
rows = {
    "recording": (Y[1], "0.3"),
    "Euclidean ball": (found["Euclidean ball"][1][1], "0.6"),
    "l1 ball": (found["l1 ball"][1][1], "#0072b2"),
}
for i, (name, (x, color)) in enumerate(rows.items()):
    right.plot(2.4 * (2 - i) + x / abs(x).max(), color=color, linewidth=1.6)
    right.text(length + 2, 2.4 * (2 - i), name, color=color, va="center")
at = np.flatnonzero(spikes[1])
right.plot(at, spikes[1, at] / abs(spikes[1]).max(), "ko", markersize=4, markerfacecolor="none")
right.set(xlabel="sample", yticks=[], xlim=(0, length))
right.set_title("One recording, and its spikes; circles are the true ones")
plt.show()
