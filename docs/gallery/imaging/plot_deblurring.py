"""
Blind deblurring of a photograph
================================

A photograph is blurred because the camera shook, along an unknown path. Can the blur be found in the
photograph alone, and be undone? The figure shows the blurred photograph, the one that comes back, the sharp one that
only the example knows, and the blur that was found next to the true one.
"""

# %%
# The camera moves in a loop, and lingers at one end of it. There is a little noise.

import matplotlib.pyplot as plt
import numpy as np
from scipy.signal import fftconvolve
from sklearn.datasets import load_sample_image

import xvarpro as xv

side, size, p = 192, 15, 48  # of the photograph, of a square that holds the blur, and of a patch, in pixels
half = size // 2
grey = load_sample_image("flower.jpg").mean(axis=2)[53:, 173:][: side + 2 * half, : side + 2 * half] / 255.0
time = np.linspace(0.0, 2.0 * np.pi, 2000)
turn = time - 0.9 * np.sin(time)
path = np.array([2.0 * np.sin(turn), 3.5 * np.cos(turn) - 3.5])
true = np.histogram2d(*path, bins=size, range=[[-size / 2, size / 2]] * 2)[0] / time.size
noise = 0.003 * np.random.default_rng(0).normal(size=(side, side))
sharp, blurred = grey[half:-half, half:-half], fftconvolve(grey, true, mode="valid") + noise

# %%
# Sharp photographs have few edges: differences between neighbouring pixels, here in patches that are faded out at their
# borders. One kernel w blurs all patches, and is eliminated by division of spectra. The sharp edges u are theta, in an
# l1 ball. A first solve with ten times the ridge brings out the strongest. (``xvarpro run deblurring`` finds wider
# blurs, from coarse to fine.)

edges = np.stack([np.diff(blurred[:-1], axis=1), np.diff(blurred[:, :-1], axis=0)])
patches = np.lib.stride_tricks.sliding_window_view(edges, (p, p), axis=(1, 2))[:, ::24, ::24].reshape(-1, p, p)
patches = patches * np.outer(np.hanning(p), np.hanning(p))
length = np.abs(patches).sum()
u = patches / length
for ridge in (3.0, 0.3):
    lam = ridge * np.sum(patches**2) / length**2
    problem = xv.separable(lambda u, data: xv.operators.StackedCirculant(u), patches.reshape(-1), lam=lam)
    fit = xv.solve(problem, u, over=xv.sets.L1Ball(1.0), max_iter=25)
    u = fit.theta

# %%
# The kernel is known up to a shift and a factor: its largest entry comes to the middle, small ones are dropped, and the
# sum is one. To sharpen with it is one least-squares solve, whose ridge weighs the differences of the photograph.
# Mirrored borders keep it from wrapping around.

w = np.maximum(fit.w.reshape(p, p), 0.0)
w = np.roll(w, [half - i for i in np.unravel_index(np.argmax(w), w.shape)], axis=(0, 1))[:size, :size]
found = np.where(w > 0.05 * w.max(), w, 0.0)
found = found / found.sum()

mirrored = np.pad(blurred, 2 * size, mode="symmetric")
kernel, slope = np.zeros(mirrored.shape), np.zeros(mirrored.shape)
kernel[:size, :size] = found
kernel = np.roll(kernel, (-half, -half), axis=(0, 1))
slope[[0, 0, 0, 1, -1], [0, 1, -1, 0, 0]] = 4.01, -1.0, -1.0, -1.0, -1.0
Circulant = xv.operators.Circulant
sharpening = xv.separable(lambda k, _: Circulant(k), mirrored.reshape(-1), lam=2e-3, Omega=Circulant(slope))
restored = xv.solve_lower(sharpening, kernel).w.reshape(mirrored.shape)[2 * size : -2 * size, 2 * size : -2 * size]
errors = [(image - sharp)[half:-half, half:-half] for image in (blurred, restored)]
before, after = (-10.0 * np.log10(np.mean(error**2)) for error in errors)
print(f"peak signal over noise: blurred {before:.1f} dB, restored {after:.1f} dB")

# %%

figure, axes = plt.subplot_mosaic("abcd;abce", figsize=(10.0, 3.1), width_ratios=[1.0, 1.0, 1.0, 0.48])
titles = f"blurred, {before:.1f} dB", f"restored, {after:.1f} dB", "sharp", "blur found", "true blur"
images = blurred, restored, sharp, found / (0.2 * found.max()), true / (0.2 * true.max())
for axis, title, image in zip(axes.values(), titles, images, strict=True):
    axis.imshow(image, cmap="gray", vmin=0.0, vmax=1.0)
    axis.set_title(title)
    axis.set_axis_off()
plt.show()
