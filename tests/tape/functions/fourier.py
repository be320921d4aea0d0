"""Fourier transforms."""

from tests.tape.functions._table import case, cnormal, each, normal, real, rng

NORMS = ("backward", "ortho", "forward")
for _norm in NORMS:
    for _n in (None, 3, 7):
        for _axis in (-1, 0):
            _options = {"n": _n, "axis": _axis, "norm": _norm}
            for _name in ("fft_fft", "fft_ifft"):
                each(_name, [_options], cnormal(4, 5))
            each("fft_rfft", [_options], normal(4, 5))
            each("fft_irfft", [_options], cnormal(4, 5))
    each("fft_hfft", [{"norm": _norm}, {"n": 5, "axis": 0, "norm": _norm}], cnormal(4, 5))
    each("fft_ihfft", [{"norm": _norm}, {"n": 4, "axis": 0, "norm": _norm}], normal(4, 5))
    for _name, _make in (("fft_fftn", cnormal), ("fft_ifftn", cnormal), ("fft_rfftn", normal), ("fft_irfftn", cnormal)):
        each(_name, [{"norm": _norm}, {"axes": (2, 0), "norm": _norm}, {"axes": (1,), "norm": _norm}], _make(2, 3, 4))
        each(
            _name,
            [{"s": (4, 2), "axes": (0, 1), "norm": _norm}, {"s": (2, 5), "axes": (0, -1), "norm": _norm}],
            _make(3, 4, 4),
        )
for _name in ("fft_fft", "fft_ifft"):
    each(_name, [{}], normal(5), strict=False)
for _name in ("fft_fftn", "fft_ifftn"):
    each(_name, [{"axes": (0, 1)}], normal(4, 5), strict=False)
each("fft_irfft", [{}, {"n": 6}], normal(5), strict=False)
case("fft_rfft", lambda xp, x: xp.fft.irfft(xp.fft.rfft(x) * xp.conj(xp.fft.rfft(x)) ** 2, n=5), normal(5))
case("fft_fft", lambda xp, x: real(xp, xp.fft.fft(xp.astype(x, xp.complex128))), normal(2, 6))
for _name in ("fft_fftshift", "fft_ifftshift"):
    each(_name, [{}, {"axes": 0}, {"axes": (0, 1)}], rng.normal(size=(4, 5)))
