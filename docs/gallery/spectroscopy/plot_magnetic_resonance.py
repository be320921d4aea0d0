"""
A magnetic-resonance spectrum, with a basis of metabolites
==========================================================

How much of each metabolite is in a volume of the brain? Its spectrum is a sum of known patterns, each a little shifted
and all of them broadened, on a smooth baseline. Shifts, widths and phase are fitted; concentrations, which cannot be
negative, and baseline are solved for. The figure shows the spectrum with its parts, and how far concentrations are off
for twelve draws of the noise.
"""

# %%
# A basis of six patterns, as lines of place (ppm) and area at 3 tesla: a sketch of the real ones, without their phase
# evolution. Those of glutamate and glutamine lie on top of each other. Signals fall with T2 and with a Gaussian width
# that the field of the magnet gives all of them.

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import least_squares

import xvarpro as xv

BASIS = {
    "NAA": [(2.01, 3.0), (2.49, 0.5), (2.67, 0.5), (4.38, 0.5)],
    "creatine": [(3.03, 3.0), (3.91, 2.0)],
    "choline": [(3.20, 9.0), (3.52, 1.0), (4.05, 1.0)],
    "inositol": [(3.27, 0.6), (3.52, 2.5), (3.61, 2.2), (4.05, 0.7)],
    "glutamate": [(2.04, 1.0), (2.11, 1.0), (2.33, 1.0), (2.36, 1.0), (3.75, 1.0)],
    "glutamine": [(2.11, 1.0), (2.14, 1.0), (2.43, 1.0), (2.46, 1.0), (3.76, 1.0)],
}
TRUTH = np.array([8.0, 6.0, 1.2, 5.0, 8.0, 2.0])  # mmol
ppm, hertz = np.linspace(0.5, 4.2, 370), 123.2  # of a ppm, at 2.9 tesla
known = {"lines": [tuple(np.array(each).T) for each in BASIS.values()], "ppm": ppm}


def M(theta, data):
    """Columns of the metabolites, real part above imaginary, and a baseline of eight wide bumps."""
    xp = xv.array_namespace(theta["shift"])
    columns = []
    for j, (places, areas) in enumerate(data["lines"]):
        away = data["ppm"][:, None] - places - theta["shift"][j]
        peak = theta["width"] ** 2 + away**2
        columns.append(xp.stack([theta["width"] / peak @ areas, away / peak @ areas]))
    real, imaginary = xp.stack(columns, axis=2)
    cos, sin = xp.cos(theta["phase"]), xp.sin(theta["phase"])
    turned = xp.concat([cos * real - sin * imaginary, sin * real + cos * imaginary], axis=0)
    return xp.concat([turned, data["baseline"]], axis=1)


bumps = np.exp(-0.5 * ((ppm[:, None] - np.linspace(0.5, 4.2, 8)) / 0.4) ** 2)
known["baseline"] = np.kron(np.eye(2), bumps)
truth = {"shift": 0.01 * np.array([1.0, -0.5, 0.3, 0.8, -1.0, 0.6]), "width": np.array(0.03), "phase": np.array(0.15)}
smooth = 40.0 * np.stack([1.0 + 0.5 * np.sin(ppm), 0.3 * np.cos(ppm)])
clean = M(truth, known)[:, :6] @ TRUTH + smooth.ravel()

# %%
# Shifts of at most 0.03 ppm. Concentrations are nonnegative, baselines may have either sign.

theta0 = {"shift": np.zeros(6), "width": np.array(0.05), "phase": np.array(0.0)}
over = {"shift": xv.sets.Box(-0.03, 0.03), "width": xv.sets.Box(0.01, 0.15), "phase": xv.sets.Box(-0.5, 0.5)}
positive = xv.lower.Bounded(np.concatenate([np.zeros(6), np.full(16, -np.inf)]), np.inf)
rng = np.random.default_rng(0)
spectra = [clean + 60.0 * rng.normal(size=clean.size) for _ in range(12)]
fits = [xv.solve(xv.separable(M, y, data=known, W=positive), theta0, over=over) for y in spectra]
fit, errors = fits[0], fits[0].statistics().w_stderr
for name, true, found, error in zip(BASIS, TRUTH, fit.w, errors, strict=False):
    print(f"{name:>10}: {found:5.2f} +- {error:.2f} mmol, truth {true}")

# %%
# All 30 unknowns at once, with bounds, from the same start and concentrations of 5 mmol: what the field does. Here that
# ends at the same minima in half as many steps, each with a Jacobian by 30 differences.


def joint(y):
    def residuals(p):
        return M({"shift": p[:6], "width": p[6], "phase": p[7]}, known) @ p[8:] - y

    at = np.concatenate([np.zeros(6), [0.05, 0.0], np.full(6, 5.0), np.zeros(16)])
    high = np.concatenate([np.full(6, 0.03), [0.15, 0.5], np.full(22, np.inf)])
    low = np.concatenate([np.full(6, -0.03), [0.01, -0.5], np.zeros(6), np.full(16, -np.inf)])
    return least_squares(residuals, at, bounds=(low, high), x_scale="jac")


rivals = [joint(y) for y in spectra[:4]]
print("objectives, solved for and all at once:")
for one, other in zip(fits, rivals, strict=False):
    print(f"  {one.value:.3f} {other.cost:.3f} ({one.status.name}, {one.trace.values[-1]:.0f} values; {other.nfev})")

# %%
# The real part with its components, and concentrations of all draws with the errors that the fit states.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.2), width_ratios=(1.5, 1))
columns = M(fit.theta, known)[:370]
left.plot(ppm, spectra[0][:370], color="0.7", linewidth=0.8)
left.plot(ppm, columns @ fit.w, color="k", linewidth=1.0)
left.plot(ppm, columns[:, 6:] @ fit.w[6:], "--", color="0.4", linewidth=1.0)
top = 0.0
for j, name in enumerate(BASIS):
    part = columns[:, j] * fit.w[j]
    top -= 1.05 * part.max() + 60.0
    left.plot(ppm, part + top, color=f"C{j}", linewidth=1.2)
    left.text(0.45, top, name, color=f"C{j}", fontsize="small", va="center")
left.set(xlabel="chemical shift (ppm)", yticks=[], xlim=(4.2, -0.4), title="Data, fit, baseline, and six metabolites")
for j in range(6):
    found = np.array([f.w[j] for f in fits])
    right.errorbar(found, j + np.linspace(-0.3, 0.3, 12), xerr=errors[j], fmt=".", color=f"C{j}", linewidth=0.6)
    right.plot([TRUTH[j]] * 2, [j - 0.4, j + 0.4], color="k")
right.set(yticks=range(6), yticklabels=BASIS, ylim=(5.6, -0.6), xlabel="mmol", title="12 draws; line: truth")
plt.show()
