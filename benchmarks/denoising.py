"""A denoiser whose prior is learned: filters by exact hypergradients, against the same prior by unrolled iterations.

python benchmarks/denoising.py [--seconds 20]

CPU seconds, one thread. Patches of 24 x 24 of scikit-learn's two photographs at half their size, noise of 0.1; the left
halves train, the right halves are held out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_sample_images

import xvarpro as xv

SIZE, WIDTH, FILTERS, SCALE, NOISE, RADIUS = 24, 5, 6, 0.03, 0.1, 5.0
VALID = SIZE - WIDTH + 1


def photographs() -> list[np.ndarray]:
    """Grey, in [0, 1], means of 2 x 2 pixels."""
    grey = [np.mean(image[:426, :640], axis=2) / 255 for image in load_sample_images().images]
    return [g.reshape(213, 2, 320, 2).mean(axis=(1, 3)) for g in grey]


def patches(images: list[np.ndarray], half: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches as columns, from the left or the right halves, and the same with noise."""
    draw, found = np.random.default_rng(seed), []
    for k in range(count):
        g = images[k % len(images)][:, 160 * half : 160 * half + 160]
        i, j = draw.integers(0, g.shape[0] - SIZE), draw.integers(0, g.shape[1] - SIZE)
        found.append(g[i : i + SIZE, j : j + SIZE].ravel())
    clean = np.stack(found, axis=1)
    return clean, clean + NOISE * draw.normal(size=clean.shape)


def responses(filters: Any, w: Any) -> Any:
    """Of every filter at every place, (FILTERS VALID^2, k), to images w, (SIZE^2, k)."""
    xp, k = xv.array_namespace(w), w.shape[1]
    x = xp.reshape(w, (SIZE, SIZE, k))
    places = [(i, j) for i in range(WIDTH) for j in range(WIDTH)]
    shifted = xp.stack([x[i : i + VALID, j : j + VALID, :] for i, j in places])
    return xp.reshape(filters.mT @ xp.reshape(shifted, (WIDTH**2, -1)), (-1, k))


def backward(filters: Any, r: Any) -> Any:
    """The adjoint of `responses`."""
    xp, k = xv.array_namespace(r), r.shape[1]
    terms = xp.reshape(filters @ xp.reshape(r, (FILTERS, -1)), (WIDTH, WIDTH, VALID, VALID, k))

    def spread(terms: Any) -> Any:
        """The sum of terms, each shifted by its number along what is then the second axis."""
        total: Any = 0
        for i in range(WIDTH):
            above, below = (xp.zeros_like(terms[i, :, :n, ...]) for n in (i, WIDTH - 1 - i))
            total = total + xp.concat([above, terms[i, ...], below], axis=1)
        return total

    rows = spread(terms)  # over i, for every j
    return xp.reshape(spread(rows), (-1, k))


def prior(filters: Any, data: Any) -> Any:
    return xv.operators.MatrixFree(responses, backward, (FILTERS * VALID**2, SIZE**2), filters)


def denoiser(clean: np.ndarray, noisy: np.ndarray) -> xv.Problem:
    """``1/2 |w - noisy|^2 + sum of SoftL1(K w)``: with the correction ``w - noisy`` as unknown, a loss and a ridge."""
    lower = xv.Level(
        prior, lambda filters, data: -responses(filters, data["noisy"]), lam=1.0, loss=xv.losses.SoftL1(SCALE)
    )
    upper = xv.Level(lambda filters, data: xv.operators.Diagonal(data["ones"]), clean - noisy)
    return xv.bilevel(lower=lower, upper=upper, data={"noisy": noisy, "ones": np.ones(SIZE**2)})


def start(weight: float, small: float) -> np.ndarray:
    """Differences along both axes, as of total variation, and cosines of small weight."""
    filters = np.zeros((WIDTH, WIDTH, FILTERS))
    filters[2, 2, :2] = weight / 2**0.5
    filters[2, 3, 0] = filters[3, 2, 1] = -weight / 2**0.5
    waves = np.cos(np.pi * (np.arange(WIDTH) + 0.5) * np.arange(WIDTH)[:, None] / WIDTH)
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    for n, (a, b) in enumerate([(1, 1), (2, 0), (0, 2), (1, 2)]):
        filters[..., 2 + n] = small * np.outer(waves[a], waves[b])
    return filters.reshape(WIDTH**2, FILTERS)


def psnr(squares: float, entries: int) -> float:
    return float(10 * np.log10(entries / squares))


class Unrolled:
    """The prior of `denoiser`, with iterations of Nesterov's method for its lower level, in PyTorch."""

    def __init__(self, clean: np.ndarray, noisy: np.ndarray, steps: int) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch, self.steps = torch, steps
        self.clean, self.noisy = (
            torch.asarray(np.ascontiguousarray(x.T)).reshape(-1, 1, SIZE, SIZE) for x in (clean, noisy)
        )

    def denoised(self, filters: Any, noisy: Any) -> Any:
        torch, conv = self.torch, self.torch.nn.functional
        K = filters.T.reshape(FILTERS, 1, WIDTH, WIDTH)
        # the curvature at most: that of the sum of squared frequency responses
        size = torch.fft.fft2(K.detach(), s=(SIZE, SIZE)).abs().square().sum(dim=0).max()
        bound = 1 + size
        momentum = (bound**0.5 - 1) / (bound**0.5 + 1)
        w = before = noisy
        for _ in range(self.steps):
            ahead = w + momentum * (w - before)
            z = conv.conv2d(ahead, K)
            slope = ahead - noisy + conv.conv_transpose2d(z / torch.sqrt(1 + (z / SCALE) ** 2), K)
            w, before = ahead - slope / bound, w
        return w

    def train(self, filters: np.ndarray, rate: float, seconds: float) -> list[tuple[float, np.ndarray]]:
        torch = self.torch
        x = torch.asarray(filters).clone().requires_grad_()
        adam, seen, begun = torch.optim.Adam([x], rate), [], time.process_time()
        while not seen or seen[-1][0] < seconds:
            adam.zero_grad()
            (0.5 * (self.denoised(x, self.noisy) - self.clean).square().sum()).backward()
            adam.step()
            with torch.no_grad():
                x *= torch.clamp(RADIUS / x.norm(dim=0, keepdim=True), max=1.0)
            seen.append((time.process_time() - begun, x.detach().numpy().copy()))
        return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--patches", type=int, default=16)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    images = photographs()
    trained, held = patches(images, 0, given.patches, 0), patches(images, 1, 64, 1)
    problems = denoiser(*trained), denoiser(*held)

    def quality(filters: np.ndarray) -> str:
        at = [
            psnr(2 * float(xv.value_and_gradient(p, filters)[0]), x[0].size)
            for p, x in zip(problems, (trained, held), strict=True)
        ]
        return " | ".join(f"{a:.3f}" for a in at)

    print("noisy |", *(f"{psnr(np.sum((a - b) ** 2), a.size):.2f}" for a, b in (trained, held)))
    best = max(np.arange(1.0, 5.0, 0.5), key=lambda a: -float(xv.value_and_gradient(problems[0], start(a, 0.0))[0]))
    print(f"differences, weight {best} |", quality(start(best, 0.0)), flush=True)
    theta0, marks = start(best, 0.1), (given.seconds / 4, given.seconds / 2, given.seconds)

    def report(name: str, seen: list[tuple[float, np.ndarray]]) -> None:
        for mark in marks:
            at = [filters for s, filters in seen if s <= mark]
            print(f"{name} | {mark:g} s | {len(at)} | {quality(at[-1])}", flush=True)

    seen, begun = [], time.process_time()
    fit = xv.solve(
        problems[0],
        theta0,
        over=xv.sets.Columns(xv.sets.L2Ball(RADIUS)),
        max_iter=1000,
        tol=1e-4,
        algorithm=xv.algorithms.ProjectedQuasiNewton(settle=0),
        progress=False,
        callback=lambda info: (
            seen.append((time.process_time() - begun, np.array(info.theta)))
            or time.process_time() - begun > given.seconds
        ),
    )
    report(f"xvarpro, {fit.status.name}, {fit.counts.gradients} gradients", seen)
    for steps, rate in ((10, 3e-2), (10, 1e-1), (30, 3e-2), (30, 1e-1)):
        rival = Unrolled(*trained, steps)
        seen = rival.train(theta0, rate, given.seconds)
        report(f"unrolled {steps}, rate {rate:g}", seen)
        own = Unrolled(*held, steps)
        w = own.denoised(own.torch.asarray(seen[-1][1]), own.noisy)
        print(
            "  held out by its own iterations:",
            f"{psnr(float((w - own.clean).square().sum()), held[0].size):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
