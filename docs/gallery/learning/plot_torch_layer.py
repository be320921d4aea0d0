"""
A fit as a layer of a PyTorch program
=====================================

A detector bends strong signals, and rates that are fitted to its readings are wrong. Can the detector be corrected when
all that is known are the rates of a few calibration samples? The correction is trained through the fit. The figure
shows what it has learned of the detector, and the rates of new samples before and after.
"""

# %%
# Readings are decays with an offset, bent by a detector that saturates. Eight samples have known rates.

import matplotlib.pyplot as plt
import torch

import xvarpro as xv

torch.manual_seed(0)
t = torch.linspace(0.0, 4.0, 60).double()
known, unknown = torch.linspace(0.5, 3.0, 8).double(), torch.linspace(0.6, 2.9, 24).double()


def detector(signal):
    return signal / (1.0 + 0.4 * signal)


readings, new = (detector(torch.exp(-t * k[:, None]) + 0.1) for k in (known, unknown))
readings, new = (r + 0.002 * torch.randn(r.shape).double() for r in (readings, new))

# %%
# The layer fits a rate, and eliminates the amplitude and the offset. What is to have a gradient comes through its data:
# here the readings, corrected. ``torch.func.vmap`` takes it over a batch.


def design(rate, data):
    xp = xv.array_namespace(rate)
    decay = xp.exp(-xp.expand_dims(data["t"], axis=1) * rate)
    return xp.concat([decay, xp.ones_like(decay)], axis=1)


problem = xv.separable(design, lambda rate, data: data["y"])
layer = xv.layers.torch.Solve(problem, torch.ones(1).double(), over=xv.sets.Box(0.05, 10.0))
fitted = torch.func.vmap(lambda y: layer({"t": t, "y": y}).theta[0])

# %%
# The correction is a polynomial without a constant and with the slope 1 at 0. Its coefficients are trained like the
# weights of any module: the loss compares fitted rates with known ones, and its gradient passes through the fits by
# implicit differentiation.

c = torch.zeros(3, dtype=torch.float64, requires_grad=True)
optimiser = torch.optim.LBFGS([c], lr=1.0, max_iter=12, line_search_fn="strong_wolfe")


def corrected(y):
    return y + c[0] * y**2 + c[1] * y**3 + c[2] * y**4


def loss():
    optimiser.zero_grad()
    value = torch.mean((fitted(corrected(readings)) / known - 1.0) ** 2)
    value.backward()
    return value


optimiser.step(loss)
with torch.no_grad():
    before, after = fitted(new) / unknown - 1.0, fitted(corrected(new)) / unknown - 1.0
print(f"root mean square error of new rates: {100 * before.square().mean().sqrt():.1f} % as read, ", end="")
print(f"{100 * after.square().mean().sqrt():.1f} % corrected")

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6))
signal = torch.linspace(0.0, 1.1, 100).double()
reading = detector(signal)
left.plot(signal, signal, ":", signal, reading, "-", color="0.6")
left.plot(signal, corrected(reading).detach(), color="#0072b2", linewidth=2.2)
left.text(0.75, 0.45, "reading", color="0.4")
left.text(0.35, 0.75, "corrected", color="#0072b2")
left.set(xlabel="signal", ylabel="reading, or corrected reading", title="The correction undoes the detector")
right.plot(unknown, 100 * before, "o", color="0.6")
right.plot(unknown, 100 * after, "o", color="#0072b2")
right.text(1.2, 100 * before.mean() + 2, "as read", color="0.4")
right.text(1.2, -2.5, "corrected", color="#0072b2")
right.set(xlabel="true rate (1/s)", ylabel="error of the fitted rate (%)", title="Rates of new samples are right")
plt.show()
