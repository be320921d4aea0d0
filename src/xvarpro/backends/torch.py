"""PyTorch on CPU or CUDA, with its own reverse mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch
from optree import tree_map
from torch import Tensor

from xvarpro.backends import checksums
from xvarpro.backends.eager import EagerBackend, cholesky_qr, each_matrix, nan_if_not_finite
from xvarpro.backends.forks import refuse_fork
from xvarpro.backends.interface import Function, Linear, State, impure
from xvarpro.backends.modules import Architecture
from xvarpro.backends.special import derivative
from xvarpro.backends.torch_checks import Watch, check_reached
from xvarpro.backends.torch_modules import TorchArchitecture
from xvarpro.backends.torch_settings import deterministic, full_precision, no_autocast
from xvarpro.backends.transformations import Transforming, implicit_root
from xvarpro.core import trees
from xvarpro.core.namespace import adopt
from xvarpro.errors import ModelError

_LINE = 64  # bytes that the widest instructions read at once
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
_started = os.getpid()
adopt(Tensor, xp, None)


class TorchBackend(Transforming, EagerBackend):
    """PyTorch.

    Parameters
    ----------
    reproducible : bool
        Whether `scope` turns PyTorch's deterministic algorithms on; `deterministic` makes such a backend.
    """

    name = "torch"
    roots = ("torch",)
    xp = xp

    def __init__(self, reproducible: bool = False) -> None:
        self.reproducible = reproducible

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Tensor:
        kind = None if dtype is None else getattr(torch, dtype)
        if not isinstance(x, torch.Tensor):
            x = np.asarray(x)
            # torch aborts the process on negative strides (2.13) and aliases read-only memory as writable
            if not x.flags.writeable or any(s < 0 for s in x.strides):
                x = x.copy()
            x = torch.from_numpy(x) if x.dtype.isnative else torch.from_numpy(x.astype(x.dtype.newbyteorder("=")))
        elif x.is_inference():
            with torch.inference_mode(False):
                x = x.clone()
        x = x.detach().to(dtype=kind, device=device).resolve_conj().resolve_neg()
        # MKL adds up a product in an order that depends on the address of its arrays; PyTorch's own are in line
        return x.clone() if self.reproducible and x.data_ptr() % _LINE else x

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.numpy(force=True)  # also of the zeros without memory that a second derivative may be

    def checksum(self, x: Tensor) -> Any:
        # its own counter of versions does not see what is written by .data, or by another framework in its memory
        if not x.is_cuda:
            return super().checksum(x.float() if x.dtype is torch.bfloat16 else x)  # which NumPy has not got
        x = self.lent(x)
        flat = (x if x.is_contiguous() else x.mT).reshape(-1)
        return checksums.of_integers(flat.view(_INTEGERS[checksums.width(x.element_size(), x.is_complex())]))

    def lent(self, x: Tensor) -> Tensor:
        x = x.detach().resolve_conj().resolve_neg()
        return x if x.ndim == 2 and x.mT.is_contiguous() else x.contiguous()

    def to_floats(self, scalars: Sequence[Tensor]) -> list[float]:
        if any(x.is_cuda for x in scalars):
            return torch.stack([x.to(torch.float64) for x in scalars]).tolist()
        return [float(x) for x in scalars]

    def devices(self) -> dict[str, Any]:
        names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        return {name: torch.device(name) for name in names}

    def architecture(self, x: object) -> Architecture | None:
        return TorchArchitecture(x) if isinstance(x, torch.nn.Module) else None

    def vjp(self, fun: Function, primals: tuple[Tensor, ...], constants: tuple[Tensor, ...] = ()) -> tuple[Any, Linear]:
        # inside a function that is differentiated itself, what is computed here belongs to the outer graph too
        inner = torch.is_grad_enabled() and any(x.requires_grad for x in (*primals, *constants))
        leaves = tuple(p.view_as(p) if p.requires_grad and inner else p.detach().requires_grad_() for p in primals)
        with torch.enable_grad():
            outputs: Any = fun(*leaves, *constants)

        def pullback(cotangents: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            live = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
            if not live:
                return tuple(torch.zeros_like(p) for p in primals)
            heads, seeds = zip(*live, strict=True)
            if seeds[0].is_cuda:
                _with_context(seeds[0].device)
            recorded = inner or (torch.is_grad_enabled() and any(c.requires_grad for c in seeds))
            return torch.autograd.grad(
                heads, leaves, seeds,
                retain_graph=True, create_graph=recorded, allow_unused=True, materialize_grads=True,
            )  # fmt: skip

        return tuple(y if inner else y.detach() for y in outputs), pullback

    def push(self, fun: Callable[[Tensor], Tensor], x: Tensor, d: Tensor) -> Tensor:
        tangent: Tensor = torch.func.jvp(fun, (x,), (d,))[1]
        return tangent

    def implicit(self, fun: Callable[[Tensor], tuple[Tensor, Tensor]], t: Tensor) -> Tensor:
        recorded = torch.is_grad_enabled() or torch.autograd.forward_ad._current_level >= 0
        return implicit_root(fun, t, torch.detach) if recorded else t

    def with_derivative(
        self, fun: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Callable[[Tensor], Tensor]], x: Tensor
    ) -> Tensor:
        found: Tensor = _Ruled.apply(fun, slope, x)
        return found

    def while_loop(
        self, cond: Callable[[State], Tensor], body: Callable[[State], State], state: State, steady: bool = False
    ) -> State:
        try:
            return super().while_loop(cond, body, state, steady)
        except RuntimeError as error:
            if "vmap" not in str(error):  # under which a condition has no one value
                raise

        def searching(state: State) -> State:  # what has ended rests
            return tree_map(partial(torch.where, cond(state)), body(state), state)

        return super().while_loop(lambda state: _Somewhere.apply(cond(state)), searching, state)

    def when(self, condition: Tensor, fun: Callable[[State], State], state: State, steady: bool = False) -> State:
        try:
            return super().when(condition, fun, state, steady)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
        return tree_map(partial(torch.where, condition), fun(state), state)

    def vmap(self, fun: Function, mapped: tuple[Tensor, ...], shared: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
        return tuple(torch.func.vmap(lambda *x: fun(*x, *shared))(*mapped))

    def with_pullback(self, fun: Function, pull: Callable[..., tuple[Tensor | None, ...]]) -> Function:
        return partial(_WithPullback.apply, fun, pull)

    def program(
        self, fun: Function, primals: tuple[Tensor, ...], constants: tuple[Tensor, ...] = (), pure: bool = True
    ) -> tuple[Any, str]:
        recorded: list[tuple[tuple[Tensor, ...], Any]] = []

        def kept(*arrays: Tensor) -> Any:
            outputs = fun(*arrays)
            if not recorded:  # the first call is the one that is differentiated
                recorded.append((arrays, outputs))
            return outputs

        with Watch() if pure else nullcontext() as watch:
            found = super().program(kept, primals, constants, pure)
        if watch and watch.written:
            raise impure(watch.written)
        own = set(map(id, (*primals, *constants)))
        for x in watch.trained.values() if watch else ():
            if id(x) not in own:
                raise ModelError(
                    "a model must compute with the parameters that it is given as theta; got one that uses another, of "
                    f"shape {tuple(x.shape)}. Take the module from theta, keep its parts in a ModuleList or ModuleDict "
                    "and not in a list, a dict or a lambda, and call .requires_grad_(False) on what is constant"
                )
        if pure:
            check_reached(fun, *recorded[0], primals, constants)
        return found

    def qr(self, A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
        if A.is_cuda and mode != "r" and (found := cholesky_qr(self, A)):
            return found
        m, n = A.shape[-2:]
        single = torch.finfo(A.dtype).eps > 1e-10
        if A.ndim > 2 or A.is_cuda or not single or m <= trees.MANY or n > trees.BLOCK // 2:
            Q, R = torch.linalg.qr(A, mode=mode)
            return Q, R
        # its LAPACK adds up all rows one after the other: over 10^6 of them Q R differs from A in the second digit
        whole = m - m % trees.BLOCK
        Q, R = torch.linalg.qr(A[:whole, :].reshape(-1, trees.BLOCK, n), mode=mode)
        below, R_all = self.qr(torch.cat([R.reshape(-1, n), A[whole:, :]]), mode)
        if mode == "r":
            return below, R_all
        top = Q @ below[: R.shape[0] * n, :].reshape(R.shape)
        return torch.cat([top.reshape(whole, n), below[R.shape[0] * n :, :]]), R_all

    def svd(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U, s, Vh = each_matrix(lambda A: tuple(torch.linalg.svd(A, full_matrices=False)), _no_svd, nan_if_not_finite(A))
        return U, s, Vh

    def cholesky(self, A: Tensor) -> Tensor:
        L, info = torch.linalg.cholesky_ex(A, check_errors=False)
        return torch.where((info == 0)[..., None, None], L, torch.nan)

    def solve_triangular(self, R: Tensor, B: Tensor, *, lower: bool = False, transpose: bool = False) -> Tensor:
        if transpose:
            return torch.linalg.solve_triangular(R.mH, B, upper=lower)
        return torch.linalg.solve_triangular(R, B, upper=not lower)

    def sparse_product(self, rows: Tensor, columns: Tensor, data: Tensor, shape: tuple[int, int], w: Tensor) -> Tensor:
        if torch.are_deterministic_algorithms_enabled() and data.is_cuda:
            return _added_rows(rows, columns, data, shape, w)  # cuSPARSE adds up in the order in which threads end
        # checked: an index out of range would read or write beyond the arrays
        M = torch.sparse_coo_tensor(torch.stack([rows, columns]), data, shape, check_invariants=True)
        return torch.sparse.mm(M, w)

    def special(self, x: Tensor, name: str, n: int) -> Tensor:
        return _Special.apply(x, name, n)

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        if torch.get_num_threads() > 1:
            refuse_fork("PyTorch", _started, ", call torch.set_num_threads(1) in this one")
        held = deterministic() if self.reproducible else nullcontext()
        with torch.inference_mode(False), torch.no_grad(), no_autocast(), full_precision(), held:
            yield

    def deterministic(self) -> TorchBackend:
        return self if self.reproducible else _reproducible()

    def nondeterministic_operations(self, device: Any) -> tuple[str, ...]:
        if torch.device(device).type == "cpu":
            return ()
        return ("PyTorch's deterministic algorithms do not cover cuSOLVER's factorisations and cuFFT's transforms.",)

    def describe(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "derivatives": "torch.autograd",
            "threads": torch.get_num_threads(),
            "cpu capability": torch.backends.cpu.get_cpu_capability(),
            "cuda": torch.version.cuda or "none",
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "unset"),
        }


def _no_svd(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k, nan = min(A.shape), torch.full_like(A, torch.nan)
    return nan[:, :k], nan.real[0, :k], nan[:k, :]


@cache
def _with_context(device: torch.device) -> None:
    """Give PyTorch's own thread for derivatives on a device the context of CUDA: a product there warns of having none.

    Any kernel of its own that is launched there does so, once.
    """
    with torch.enable_grad():
        x = torch.zeros(1, device=device, requires_grad=True)
        torch.autograd.grad((2.0 * x).sum(), x)


@cache
def _reproducible() -> TorchBackend:
    return TorchBackend(reproducible=True)


def _added_rows(rows: Tensor, columns: Tensor, data: Tensor, shape: tuple[int, int], w: Tensor) -> Tensor:
    terms = data.unsqueeze(1) * w[columns]
    return terms.new_zeros((shape[0], w.shape[1])).index_add(0, rows, terms)


class _Special(torch.autograd.Function):
    """A function of `xv.special`: PyTorch's own derivatives of erfcx and gammaln lose most of their digits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, name: str, n: int) -> Tensor:
        return derivative(torch.special, x, name, n)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.name, ctx.n = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return g * _Special.apply(*ctx.saved_tensors, ctx.name, ctx.n + 1), None, None


class _Somewhere(torch.autograd.Function):
    """Whether a condition holds, for one entry of a batch at least under vmap: that has a value."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.any()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor) -> tuple[Tensor, None]:
        return _Somewhere.apply(x), None


class _Ruled(torch.autograd.Function):
    """A function of arrays with batch axes, whose derivative, its own transpose, is given."""

    @staticmethod
    def forward(fun: Any, slope: Any, x: Tensor) -> Tensor:
        found: Tensor = fun(x)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.slope, x = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Any, ...]:
        return None, None, ctx.slope(*ctx.saved_tensors)(c)

    @staticmethod
    def jvp(ctx: Any, _fun: None, _slope: None, d: Tensor) -> Tensor:
        return ctx.slope(*ctx.saved_tensors)(d)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], fun: Any, slope: Any, x: Tensor) -> tuple[Tensor, int]:
        return _Ruled.apply(fun, slope, x.movedim(in_dims[2], 0)), 0


class _WithPullback(torch.autograd.Function):
    """A function of arrays with a pull-back of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(fun: Function, pull: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(fun(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.pull, *arrays = inputs
        ctx.split = len(arrays)
        ctx.save_for_backward(*arrays, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        with no_autocast(), full_precision():
            return None, None, *ctx.pull(saved[: ctx.split], saved[ctx.split :], cotangents)
