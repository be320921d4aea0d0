"""The solver against dense matrices, the model's identities, a blur that is found, and the command."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from importlib.metadata import entry_points

import numpy as np
import pytest
import xvarpro_deblurring as deblurring
from scipy.signal import convolve2d
from xvarpro_deblurring import Blur, Correlation, figures, gram, psnr, sharpen
from xvarpro_experiments import race, sanity
from xvarpro_experiments.datasets import VARIABLE
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Tuned

import xvarpro as xv
from xvarpro.errors import ProblemError

# modules whose names the package gives to their functions
coarse_to_fine, restoring = (importlib.import_module(f"xvarpro_deblurring.{name}") for name in ("estimate", "restore"))

RNG = np.random.default_rng(6)
U = RNG.normal(size=(2, 7, 6))
G = RNG.normal(size=(2, 7, 6))


@pytest.fixture(scope="module")
def photograph():
    return deblurring.scene(128, 9, seed=2)


def blurred(u, w):
    """``w * u`` of both images, zero outside."""
    height, width = (n + len(w) - 1 for n in u.shape[1:])
    return np.reshape(Blur(len(w))(u, None).matvec(w.reshape(-1, 1)), (2, height, width))


def test_the_design_is_the_convolution_of_both_images():
    w = RNG.normal(size=(3, 3))
    M = Blur(3)(U, None)
    A = M.dense()
    np.testing.assert_allclose(gram(M), A.T @ A, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(blurred(U, w), [convolve2d(u, w) for u in U], atol=1e-12)


def stated(solver, levels=1):
    y, blur = np.pad(G, ((0, 0), (1, 1), (1, 1))).ravel(), Blur(3)
    if levels == 1:
        return xv.separable(blur, y, lam=0.3, solver=solver)
    return xv.bilevel(lower=xv.Level(blur, y, lam=0.3, solver=solver), upper=xv.Level(blur, 0.5 * y))


@pytest.mark.parametrize("levels", [1, 2])
def test_correlation_solves_what_qr_solves(levels):
    value, gradient = xv.value_and_gradient(stated(xv.lower.QR(), levels), U)
    there, slope = xv.value_and_gradient(stated(Correlation(), levels), U)
    assert there == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
def test_an_image_without_edges_has_no_kernel_to_show():
    fit = xv.solve(stated(Correlation()), 0 * U, over=xv.sets.L1Ball(1.0), max_iter=0)
    assert not np.any(fit.w)
    bare = xv.separable(Blur(3), np.ones(144), solver=Correlation())
    assert xv.solve(bare, 0 * U, over=xv.sets.L1Ball(1.0), max_iter=5).status is xv.Status.RANK_DEFICIENT


def test_correlation_refuses_other_designs():
    with pytest.raises(ProblemError, match="a Convolution with one number lam"):
        xv.value_and_gradient(xv.separable(lambda x, _: x, np.ones(3), lam=1.0, solver=Correlation()), np.eye(3))


def test_units_leave_the_problem_as_it_is():
    start, over = deblurring.start(G), xv.sets.L1Ball(1.0)
    fits = [xv.solve(deblurring.problem(c * G, 3), start, over=over, max_iter=6, tol=0.0) for c in (1.0, 32.0)]
    np.testing.assert_allclose(fits[1].theta, fits[0].theta, atol=1e-10)
    assert fits[1].value == pytest.approx(1024 * fits[0].value, rel=1e-9)


def test_scales_are_odd_and_lie_close():
    for size in (3, 5, 7, 15, 27, 51):
        found = deblurring.scales(size)
        assert (found[0], found[-1]) == (3, size)
        assert all(n % 2 for n in found)
        assert all(a < b <= 2.4 * a for a, b in itertools.pairwise(found))


def test_resizing_keeps_constants_and_straight_lines():
    ramp = np.add.outer(np.arange(20.0), 2 * np.arange(30.0))
    half = np.add.outer(2 * np.arange(10) + 0.5, 4 * np.arange(15) + 1)
    np.testing.assert_allclose(coarse_to_fine.resized(ramp, (10, 15))[2:-2, 2:-2], half[2:-2, 2:-2])
    np.testing.assert_allclose(coarse_to_fine.resized(np.ones((2, 5, 7)), (9, 4)), 1.0)
    np.testing.assert_allclose(coarse_to_fine.resized(ramp, ramp.shape), ramp)


def test_centring_moves_the_edges_and_with_them_the_kernel():
    w = np.zeros((5, 5))
    w[4, 1] = 1.0
    u = np.zeros((2, 12, 12))
    u[0, 5, 6] = 1.0
    assert coarse_to_fine.centred(u, w)[0, 7, 5] == 1  # the kernel's shift, which the kernel has no longer


def test_the_spread_function_is_on_the_simplex_and_finds_a_kernel_from_true_edges():
    kernel = np.diag([1.0, 2.0, 3.0]) / 6
    u = np.zeros((2, 30, 30))
    u[:, 5:25, 5:25] = RNG.normal(size=(2, 20, 20)) * (RNG.random((2, 20, 20)) < 0.1)
    found = coarse_to_fine.spread_function(5 * u, blurred(u, kernel)[:, 1:-1, 1:-1], 3, ridge=1e-9)
    assert np.min(found) >= 0
    assert np.sum(found) == pytest.approx(1.0)
    np.testing.assert_allclose(found, kernel, atol=1e-4)


def test_a_blind_estimate_is_better_than_the_blur_and_than_no_kernel(photograph):
    row = deblurring.deblur(photograph, size=11, iterations=10)
    assert row.deblurred > row.blurred + 0.5
    assert row.known > row.blurred
    assert row.match > deblurring.kernel_match(np.ones((1, 1)), photograph.kernel) + 0.1
    assert row.kernel.min() >= 0
    assert row.kernel.sum() == pytest.approx(1.0)
    assert sorted(row.record()) == ["blurred", "deblurred", "known", "match", "name", "seconds", "trust"]
    assert len(figures.before_and_after([row]).axes) == 5


def test_sharpening_undoes_a_blur_that_is_known(photograph):
    x = sharpen(photograph.blurred, photograph.kernel)
    assert psnr(x, photograph.sharp, 3, 12) > psnr(photograph.blurred, photograph.sharp, 3, 12) + 2
    assert 0 <= x.min() <= x.max() <= 1


def test_psnr_of_a_constant_error_at_a_shift():
    sharp = RNG.uniform(size=(24, 24))
    assert psnr(np.roll(sharp, (2, -1), axis=(0, 1)) + 0.01, sharp, 3, 5) == pytest.approx(40.0)
    assert psnr(sharp, sharp, 0, 0) == np.inf


def test_a_race_over_every_family(photograph):
    stated = deblurring.experiment([photograph], size=9, scale=5)
    stated = replace(stated, methods=tuple(m.candidates[2] if isinstance(m, Tuned) else m for m in stated.methods))
    found = race.run(stated, Budget(4, 20.0))
    for o in found.outcomes[0]:
        if np.isfinite(o.objective):
            assert np.sum(np.abs(o.theta)) <= 1 + 1e-9
        if o.family in ("paper", "ours"):
            assert o.objective <= o.curve.value[0]
    assert any("identified" in sentence for sentence in stated.notes(found))


def test_the_command_is_registered_and_writes_sound_numbers_and_figures(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    (entry,) = entry_points(group="xvarpro.experiments", name="deblurring")
    summary = entry.load()(size=5, scale=3, side=48, photographs=1, iterations=4, out=tmp_path)
    assert all(check.passed for check in sanity.checks(summary))
    assert summary["photographs"][0]["deblurred"] > summary["photographs"][0]["blurred"]
    for name in ("convergence", "photographs"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_scenes_are_blurred_by_their_kernels():
    made = deblurring.scene(40, 7, noise=0.0, seed=3)
    inside = convolve2d(made.sharp, made.kernel, mode="valid")
    np.testing.assert_allclose(made.blurred[3:-3, 3:-3], inside, atol=1e-12)
    assert made.kernel.sum() == pytest.approx(1.0)
    assert made.kernel.min() >= 0


def test_photographs_are_found_by_their_names(tmp_path, monkeypatch):
    from matplotlib.image import imsave

    monkeypatch.delenv(VARIABLE, raising=False)
    assert deblurring.find_photographs() is None
    with pytest.raises(ProblemError, match="im1_kernel1"):
        deblurring.photographs(tmp_path)
    here = tmp_path / "levin09"
    (here / "gt").mkdir(parents=True)
    image = np.linspace(0, 1, 48).reshape(6, 8)
    for path in ("im1_kernel1_img.png", "im1_kernel10_img.png", "im1_kernel2_img.png", "gt/im1.png"):
        imsave(here / path, image, cmap="gray", vmin=0, vmax=1)
    np.savez(here / "kernels_conv.npz", kernel1=np.ones((3, 3)) / 9)
    found = deblurring.photographs(tmp_path)
    assert [p.name for p in found] == [f"image 1, kernel {k}" for k in (1, 2, 10)]
    np.testing.assert_allclose(found[0].blurred, image, atol=1 / 255)
    np.testing.assert_allclose(found[0].sharp, image, atol=1 / 255)
    assert found[0].kernel.shape == (3, 3)
    assert found[1].kernel is None
    (here / "im1_kernel2_img.png").write_bytes(b"no picture")
    with pytest.raises(ProblemError, match="not a readable PNG"):
        deblurring.photographs(tmp_path)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: deblurring.problem(G, 4), "size must be odd"),
        (lambda: deblurring.problem(G, 3, ridge=0.0), "ridge"),
        (lambda: deblurring.problem(0 * G, 3), "constant"),
        (lambda: deblurring.differences(G), "height, width"),
        *((lambda x=x: deblurring.restore(x), r"in \[0, 1\]; got") for x in (G, 255 * np.eye(9), np.nan * np.eye(9))),
        (lambda: deblurring.scales(4), "size must be odd"),
        (lambda: sharpen(np.eye(8), np.ones((2, 2))), "odd side"),
        (lambda: sharpen(np.eye(8), np.ones((3, 3)), weight=0.0), "weight"),
        (lambda: psnr(np.eye(8), np.eye(8), 3, 4), "half of it"),
        (lambda: deblurring.scene(8), "side from 16"),
        (lambda: deblurring.experiment([]), "must not be empty"),
        (lambda: deblurring.experiment(scale=4), "scale must be one of"),
        (lambda: deblurring.experiment(units=-1.0), "units"),
        (lambda: deblurring.experiment(dtype="int8"), "dtype"),
    ],
)
def test_bad_arguments_are_refused(build, match):
    with pytest.raises(ProblemError, match=match):
        build()


def test_sharpening_is_kept_as_far_as_the_parts_agree(photograph, monkeypatch):
    """All of it where they find one kernel, less where two err, whatever one finds, none where they find anything."""
    true = photograph.kernel
    flat, streak = np.full(true.shape, 1.0 / true.size), np.eye(len(true)) / len(true)
    trusts, qualities = [], []
    for kernels in (
        [true] * 5,
        [true, true, *[0.95 * true + 0.05 * flat] * 2, streak],
        [true, streak, flat, streak[::-1], np.eye(len(true))[::-1] @ true],
    ):
        left = iter(kernels)
        monkeypatch.setattr(restoring, "estimate", lambda *_, left=left, **__: next(left))
        found = deblurring.restore(photograph.blurred, len(true))
        trusts.append(found.trust)
        qualities.append(psnr(found.image, photograph.sharp, 3, 12))
        assert (found.kernel == kernels[0]).all()
        assert 0 <= found.image.min() <= found.image.max() <= 1
    assert trusts[0] == 1.0 > trusts[1] > 0.5 > trusts[2] == 0.0
    assert qualities[0] > qualities[1] > qualities[2] == psnr(photograph.blurred, photograph.sharp, 3, 12)


def test_images_are_aligned_within_reach():
    x = RNG.uniform(size=(20, 20))
    for shift in ((0, 0), (2, -3), (-3, 1)):
        found, error = restoring.aligned(np.roll(x, shift, axis=(0, 1)), x, 3)
        assert (found[3:-3, 3:-3] == x[3:-3, 3:-3]).all()
        assert error == 0
    assert restoring.aligned(x, x, 0)[0].shape == x.shape
