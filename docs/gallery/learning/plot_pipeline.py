"""
NumPy, JAX and PyTorch in one pipeline
======================================

Can a network be trained on what a fit finds, when data, solver and network live in three libraries? Decays come as
NumPy arrays, JAX fits them together, and the results are PyTorch tensors, since the start was one. A small network
learns to tell two materials by their compositions; the figure shows where it draws the line.
"""

# %%
# NumPy: six hundred samples, each a mixture of three components that decay at common, unknown rates. The mixtures of
# the two materials overlap; how bright a sample is says nothing.

import matplotlib.pyplot as plt
import numpy as np
import torch

import xvarpro as xv

rng = np.random.default_rng(0)
t = np.linspace(0.0, 4.0, 64)
material = rng.integers(0, 2, 600)
mixture = np.where(material[:, None], rng.dirichlet([6, 9, 3], 600), rng.dirichlet([12, 4, 4], 600))
brightness = rng.uniform(0.5, 2.0, (600, 1))
y = np.exp(-t[:, None] * [0.4, 1.5, 6.0]) @ (brightness * mixture).T + 0.005 * rng.normal(size=(64, 600))

# %%
# JAX: one solve in a compiled loop, in double precision as the start has it, whatever JAX's own flag says. The samples
# are right-hand sides, which share the rates and have weights w of their own.


def M(rates, data):
    xp = xv.array_namespace(rates)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * rates)


theta0 = torch.tensor([0.3, 2.0, 8.0], dtype=torch.float64)
fit = xv.solve(xv.separable(M, y, data={"t": t}), theta0, over=xv.sets.Box(0.01, 20.0), backend="jax")
print(f"{fit.status.name} on {fit.provenance['backend']}: rates {fit.theta}, w {tuple(fit.w.shape)}, {type(fit.w)}")

# %%
# PyTorch: a network is given the shares of two components, and half of the samples to learn from.

shares = (fit.w / fit.w.sum(dim=0)).T[:, :2].float()
scaled = (shares - shares.mean(dim=0)) / shares.std(dim=0)
label = torch.from_numpy(material).float()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
loss = torch.nn.BCEWithLogitsLoss()
for _ in range(300):
    optimiser.zero_grad()
    loss(net(scaled[:300])[:, 0], label[:300]).backward()
    optimiser.step()
right = ((net(scaled)[:, 0] > 0) == (label > 0.5))[300:].float().mean()
print(f"{100 * right:.0f} % of the samples it has not seen are classified correctly")

# %%
# Samples that the network has not seen, and where it is undecided.

x, z = np.meshgrid(np.linspace(0.05, 0.95, 100), np.linspace(0.0, 0.8, 100))
with torch.no_grad():
    points = torch.from_numpy(np.stack([x.ravel(), z.ravel()], axis=1)).float()
    score = net((points - shares.mean(dim=0)) / shares.std(dim=0)).reshape(x.shape)
figure, ax = plt.subplots(figsize=(5.6, 3.8))
for kind, colour, place in ((0, "#d55e00", (0.7, 0.45)), (1, "#009e73", (0.06, 0.36))):
    ax.plot(*shares[300:][material[300:] == kind].T, ".", color=colour, markersize=5)
    ax.annotate(f"material {kind}", place, color=colour)
ax.contour(x, z, score, levels=[0.0], colors="#0072b2", linewidths=2)
ax.set(xlabel="share of the slow component", ylabel="share of the middle component")
ax.set_title("The network's border between two materials")
plt.show()
