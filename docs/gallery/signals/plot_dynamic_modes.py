"""
Dynamic modes that cannot grow
==============================

A flow, a film or a power grid is often described by a few modes that oscillate and decay. Exact dynamic mode
decomposition takes them from a regression of each snapshot on the one before, where noise stands on both sides. Here
`xvarpro.sklearn.DMD` fits the modes to all snapshots at once (optimised DMD), with real parts of at most 0: no mode can
grow. The figure shows eigenvalues for 30 draws of the noise, and what they say of the time after the data.
"""

# %%
# Two waves on a string of 100 points, one of which decays: the example of Askham and Kutz (2018), with a first wave
# that lasts. Noise is a quarter of the waves.

import matplotlib.pyplot as plt
import numpy as np

from xvarpro.sklearn import DMD

x, t = np.linspace(0.0, 15.0, 100), np.linspace(0.0, 8.0, 128)
truth = np.array([1j, -0.2 + 3.7j])


def waves(t):
    return np.sin(x - t[:, None]) + np.exp(-0.2 * t[:, None]) * np.sin(0.4 * x - 3.7 * t[:, None])


def exact(y, rank=4):
    """Eigenvalues by exact DMD, those of positive frequency, lowest first."""
    U, s, Vh = np.linalg.svd(y[:-1].T, full_matrices=False)
    step = U[:, :rank].T @ y[1:].T @ Vh[:rank].T / s[:rank]
    values = np.log(np.linalg.eigvals(step).astype(complex)) / (t[1] - t[0])
    values = values[np.argsort(values.imag)][-2:]
    return values.real + 1j * np.abs(values.imag)


# %%
# Optimised DMD with its eigenvalues anywhere, and with real parts of at most 0.

rng = np.random.default_rng(0)
draws = [waves(t) + 0.25 * rng.normal(size=(t.size, x.size)) for _ in range(30)]
anywhere = [DMD(4).fit(y, t=t) for y in draws]
stable = [DMD(4, real=(-np.inf, 0.0)).fit(y, t=t) for y in draws]


def first_two(models):
    """Eigenvalues of positive frequency, lowest first."""
    values = np.array([model.eigenvalues_[model.eigenvalues_.imag > 0] for model in models])
    return np.take_along_axis(values, np.argsort(values.imag, axis=1), axis=1)


eigenvalues = {
    "exact DMD": np.array([exact(y) for y in draws]),
    "optimised": first_two(anywhere),
    "optimised, no growth": first_two(stable),
}
for name, values in eigenvalues.items():
    error = np.sqrt(np.mean(np.abs(values - truth) ** 2, axis=0))
    growing = np.sum(np.any(values.real > 0, axis=1))
    print(f"{name:>20}: errors {error[0]:.4f} and {error[1]:.4f}; a mode grows in {growing} of 30 draws")

# %%
# The forecast, at ten times the time of the data, for the draw that the constraint changes most. Modes of exact DMD are
# those of least squares for its eigenvalues.


def continued(values, y, later):
    def columns(s):
        return np.concatenate([np.exp(s[:, None] * values).real, np.exp(s[:, None] * values).imag], axis=1)

    return columns(later) @ np.linalg.lstsq(columns(t), y, rcond=None)[0]


which = int(np.argmax(eigenvalues["optimised"].real.max(axis=1)))
later = np.linspace(60.0, 80.0, 200)
figure, (plane, future) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(1, 1.3))
future.plot(later, waves(later)[:, 50], color="0.3", linewidth=3.0, alpha=0.5, label="truth")
forecasts = {
    "exact DMD": continued(eigenvalues["exact DMD"][which], draws[which], later),
    "optimised": anywhere[which].forecast(later),
    "optimised, no growth": stable[which].forecast(later),
}
for (name, values), colour in zip(eigenvalues.items(), ("#d55e00", "#e69f00", "#0072b2"), strict=True):
    plane.plot(values[:, 0].real, values[:, 0].imag, ".", color=colour, alpha=0.6)
    found = forecasts[name]
    off = np.linalg.norm(found - waves(later)) / np.linalg.norm(waves(later))
    print(f"{name:>20}: off by {off:.1%} between 60 and 80")
    future.plot(later, found[:, 50], color=colour, label=f"{name}: off by {off:.0%}")
plane.axvspan(0.0, 0.02, color="0.92")
plane.text(0.003, 0.9815, "growth", color="0.5")
plane.plot(0.0, 1.0, "+", color="k", markersize=14)
plane.set_xlim(right=0.02)
plane.set(xlabel="real part", ylabel="imaginary part", title="First eigenvalue, 30 draws; +: truth")
future.set(
    xlabel="time (the data end at 8)", ylabel="one point of the string", title="Far after the data", ylim=(-1.6, 3.4)
)
future.legend(ncols=2, fontsize="small", loc="upper center")
plt.show()
