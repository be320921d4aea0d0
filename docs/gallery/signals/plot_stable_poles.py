"""
Scattering parameters by stable poles
=====================================

Which circuit has the scattering parameters that an instrument measured? Its poles are shared by all ports, and lie in
the left half-plane. Here they are found one pair at a time, with no start and no number given, and all move together;
vector fitting, which is what the field uses, relocates a given number of poles. The figure shows the fit, the poles,
and how the error falls with their number.
"""

# %%
# A filter of two ports with six resonances, two of them close together, at 0.5 to 4.5 GHz, and noise.

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
f = np.linspace(0.5, 4.5, 160)  # GHz
truth = {
    "damping": np.array([0.02, 0.03, 0.025, 0.06, 0.05, 0.3]),
    "frequency": np.array([1.1, 1.6, 1.68, 2.4, 3.3, 3.9]),
}


def pairs(theta, f):
    """Two columns for each pole and its conjugate, with real weights; real parts above imaginary ones."""
    xp = xv.array_namespace(theta["damping"])
    s = 1j * f[:, None]
    upper = 1 / (s + theta["damping"] - 1j * theta["frequency"])
    lower = 1 / (s + theta["damping"] + 1j * theta["frequency"])
    both = xp.stack([upper + lower, 1j * (upper - lower)], axis=2)
    return xp.concat([xp.real(both), xp.imag(both)], axis=0)


residues = rng.normal(size=(6, 2, 3)) * truth["damping"][:, None, None]  # of S11, S21, S22
noise = 0.01
S = np.einsum("fnb,nbk->fk", pairs(truth, f), residues) + noise * rng.normal(size=(320, 3))

box = {"damping": (0.003, 2.0), "frequency": (0.0, 6.0)}
found = xv.find_components(pairs, S, box, data=f, columns=np.repeat([1.0, 0.0], 160))
print(found)

# %%
# Vector fitting (Gustavsen, Semlyen 1999) in its plain form: a rational weight, common to all responses, is fitted with
# the responses; its zeros are the next poles, and unstable ones are reflected.


def basis(a):
    """The columns of `pairs` for poles a of positive imaginary part."""
    return pairs({"damping": -a.real, "frequency": a.imag}, f).reshape(320, -1)


def vector_fit(n, rounds=20):
    a = -0.01 * np.linspace(0.6, 4.4, n) + 1j * np.linspace(0.6, 4.4, n)
    constant = np.repeat([1.0, 0.0], 160)[:, None]
    for _ in range(rounds):
        phi = basis(a)
        own = np.hstack([phi, constant])
        Q = np.linalg.qr(own)[0]
        values = S[:160] + 1j * S[160:]
        complex_ = phi[:160] + 1j * phi[160:]
        rows, right = [], []
        for k in range(S.shape[1]):
            product = values[:, k : k + 1] * complex_
            A = -np.vstack([product.real, product.imag])
            rows.append(A - Q @ (Q.T @ A))
            right.append(S[:, k] - Q @ (Q.T @ S[:, k]))
        c = -np.linalg.lstsq(np.vstack(rows), -np.concatenate(right), rcond=None)[0]
        A, b = np.zeros((2 * n, 2 * n)), np.tile([2.0, 0.0], n)
        for i, pole in enumerate(a):
            A[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[pole.real, pole.imag], [-pole.imag, pole.real]]
        zeros = np.linalg.eigvals(A - np.outer(b, c))
        zeros = zeros[np.argsort(-zeros.imag)][:n]
        a = -np.abs(zeros.real) - 1e-6 + 1j * np.abs(zeros.imag)
    own = np.hstack([basis(a), constant])
    return a, own @ np.linalg.lstsq(own, S, rcond=None)[0]


def error(fitted):
    return np.sqrt(np.mean((fitted - S) ** 2))


# %%
# Errors by the number of pairs. With the right number both end at the noise and at the same poles; with fewer, vector
# fitting minimises an error that is weighted by its own poles, and ends higher.

numbers = range(2, 9)
vector = [error(vector_fit(n)[1]) for n in numbers]
path = xv.find_components(pairs, S, box, data=f, columns=np.repeat([1.0, 0.0], 160), max_components=8)
ours = [path.scores[n] for n in numbers]
for n, one, other in zip(numbers, ours, vector, strict=True):
    print(f"{n} pairs: rms {one:.5f} by components, {other:.5f} by vector fitting")

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.0, 3.4), width_ratios=(1.5, 1, 1))
fitted = found.fit.fitted
a = vector_fit(6)[0]
for k, name in enumerate(("S11", "S21", "S22")):
    left.plot(f, np.hypot(S[:160, k], S[160:, k]), ".", color=f"C{k}", markersize=3, alpha=0.5)
    left.plot(f, np.hypot(fitted[:160, k], fitted[160:, k]), color=f"C{k}", label=name)
left.set(xlabel="frequency (GHz)", ylabel="magnitude", title="Data and the fit of six pairs")
left.legend()
middle.plot(-truth["damping"], truth["frequency"], "+", color="k", markersize=13, label="truth")
middle.plot(-found.fit.theta["damping"], found.fit.theta["frequency"], "o", color="C0", label="components")
middle.plot(a.real, a.imag, "x", color="C1", label="vector fitting, 6")
middle.set(xlabel="real part (GHz)", ylabel="imaginary part (GHz)", title="Poles")
middle.legend(loc="lower left")
right.semilogy(numbers, ours, "o-", label="components")
right.semilogy(numbers, vector, "x-", label="vector fitting")
right.axhline(noise, color="0.5", linestyle=":", zorder=0)
right.text(2, 1.05 * noise, "noise", color="0.5", va="bottom")
right.set(xlabel="pairs of poles", ylabel="rms error", title="Error by number of pairs")
right.legend()
plt.show()
