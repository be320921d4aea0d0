"""Arrays that JAX spreads over the devices of a mesh, of one process or of several."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import jax
import jax.numpy as xp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xvarpro.backends.interface import Placement
from xvarpro.core.namespace import adopt
from xvarpro.errors import ProblemError

WHOLE = PartitionSpec()


@dataclass(frozen=True)
class OneDevice(Placement):
    """Each array on one device, as far as is known."""

    def of(self, targets: Mapping[str, Any], others: Mapping[str, Any]) -> Placement:
        over = spread(targets, others)
        if over is None:
            return OneDevice()
        adopt(type(xp.zeros(())), xp, device)
        return over

    def place(self, x: Array) -> Any:
        return x.device

    def digests(self, x: Array) -> np.ndarray | None:
        return digests(x)


@dataclass(frozen=True)
class Spread(OneDevice):
    """Where arrays of a problem lie.

    Attributes
    ----------
    mesh : Mesh
        All axes are Auto: XLA partitions what the user's functions compute, which on Explicit axes they would have to
        say.
    stated : Mesh
        The caller's, over the same devices: results go there.
    rows, columns : tuple of str
        Axes over which rows and columns of the target are spread; () where each device has all of them.
    """

    several = True

    mesh: Mesh
    stated: Mesh
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def size(self, axes: tuple[str, ...]) -> int:
        """The number of parts along axes of the mesh."""
        return math.prod(self.mesh.shape[axis] for axis in axes)

    @property
    def many(self) -> bool:
        """Whether the devices belong to several processes."""
        return _processes(self.mesh) > 1

    def put(self, x: Array | np.ndarray) -> Array:
        """An array on the mesh: one that is spread over its devices stays where it is, others go to all of them."""
        # one device of this process is not one of the others'
        local = self.many and isinstance(x, Array) and not _is_spread(x)
        return jax.device_put(np.asarray(x) if local else x, self.keep(x))

    def keep(self, x: Any) -> NamedSharding:
        """How an array is spread, over the mesh."""
        return NamedSharding(self.mesh, self._spec(x))

    def place(self, x: Any) -> NamedSharding:
        """How an array is spread, over the caller's mesh."""
        return NamedSharding(self.stated, self._spec(x))

    def agree(self, value: float) -> float:
        return first(value) if self.many else value

    def _spec(self, x: Any) -> PartitionSpec:
        there = isinstance(x, Array) and _is_spread(x) and _same(x.sharding, self.mesh)
        return _spec(x) if there else WHOLE

    def concat_rows(self, A: Array, B: Array) -> Array:
        # a concatenation would gather A; a shift of its rows moves as many as B has
        none = [(0, 0, 0)] * (A.ndim - 2)
        A, B = A.astype(dtype := xp.result_type(A, B)), B.astype(dtype)
        zero = xp.zeros((), dtype)
        m, more = A.shape[-2], B.shape[-2]
        above = jax.lax.pad(A, zero, [*none, (0, more, 0), (0, 0, 0)])
        return above + jax.lax.pad(B, zero, [*none, (m, 0, 0), (0, 0, 0)])


def spread(targets: Mapping[str, Any], others: Mapping[str, Any]) -> Spread | None:
    """Where arrays lie, by name; None where each lies on one device.

    Raises
    ------
    ProblemError
        They are not spread over one mesh, or not by a `NamedSharding`.
    """
    arrays = {**targets, **others}
    found = {name: x for name, x in arrays.items() if isinstance(x, Array) and _is_spread(x)}
    if not found:
        return None
    # those of which each device has all entries can go to any mesh
    parts = {name: x for name, x in found.items() if not x.sharding.is_fully_replicated}
    first, like = next(iter((parts or found).items()))
    for name, x in (parts or {first: like}).items():
        if not isinstance(x.sharding, NamedSharding):
            raise ProblemError(
                f"{name} must have a NamedSharding; got a {type(x.sharding).__name__}. Put it on a mesh by "
                "jax.device_put(x, NamedSharding(mesh, spec))"
            )
        if not _same(x.sharding, like.sharding.mesh):
            raise ProblemError(
                f"sharded arrays must lie on one mesh; got {first} on {like.sharding.mesh} and {name} on "
                f"{x.sharding.mesh}. Put them on one by jax.device_put(x, NamedSharding(mesh, spec))"
            )
    stated = like.sharding.mesh
    if _processes(stated) not in (1, jax.process_count()):
        raise ProblemError(
            f"a mesh must have devices of one process or of all {jax.process_count()}; got {first} on {stated}. Make "
            "it of jax.devices() or of jax.local_devices()"
        )
    rows, columns = (
        next((axes for name, x in parts.items() if name in names and (axes := _axes(x, i))), ())
        for i, names in enumerate((arrays, targets))
    )
    return Spread(_auto(stated), stated, rows, columns)


def device(x: Array) -> Any:
    """The device of an array; of one that is spread over several, where numbers go that all of them have."""
    return NamedSharding(x.sharding.mesh, WHOLE) if isinstance(x.sharding, NamedSharding) else x.device


def platform(place: Any) -> str:
    """Kind of the device, or of those of a sharding."""
    found: str = next(iter(place.device_set)).platform if isinstance(place, NamedSharding) else place.platform
    return found


def _is_spread(x: Array) -> bool:
    if isinstance(x, jax.core.Tracer):
        return False
    # on Explicit axes JAX asks for shardings even where there is one device
    explicit = isinstance(x.sharding, NamedSharding) and AxisType.Explicit in x.sharding.mesh.axis_types
    return explicit or x.sharding.num_devices > 1


def _same(sharding: Any, mesh: Mesh) -> bool:
    """Whether it is one of a mesh, whatever the types of its axes."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.axis_names != mesh.axis_names:
        return False
    return sharding.mesh.devices.shape == mesh.devices.shape and bool((sharding.mesh.devices == mesh.devices).all())


def _spec(x: Array) -> PartitionSpec:
    return x.sharding.spec


def _axes(x: Array, axis: int = 0) -> tuple[str, ...]:
    """Axes of the mesh over which an axis of an array, by default its rows, is spread."""
    found = next(islice(_spec(x), axis, None), None)
    return found if isinstance(found, tuple) else () if found is None else (str(found),)


@cache
def _processes(mesh: Mesh) -> int:
    return len({d.process_index for d in mesh.devices.flat})


# -- QR of rows that are spread


def qr(A: Array, mode: str, spread: Spread | None) -> tuple[Array, Array] | None:
    """QR of a tall matrix whose rows are spread over devices, by that of each; None where it is no such matrix.

    Each device factors its rows, all of them the stack of the triangles (Demmel, Grigori, Hoemmen, Langou, SIAM J. Sci.
    Comput. 34, 2012): what is sent is one triangle of each.
    """
    if A.ndim != 2:
        return None
    mesh, axes = (None, ()) if spread is None else (spread.mesh, spread.rows)
    if _is_spread(A) and isinstance(A.sharding, NamedSharding):  # outside of compiled functions
        mesh, axes = _auto(A.sharding.mesh), _axes(A)
        A = jax.device_put(A, NamedSharding(mesh, _spec(A)))
    m, n = A.shape
    p = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in axes)
    if mesh is None or p == 1 or m < p * n:  # the triangles would be as large as A
        if mesh is None or isinstance(A, jax.core.Tracer):
            return None
        A = jax.device_put(A, NamedSharding(mesh, WHOLE))
        return (A, xp.linalg.qr(A, mode="r")) if mode == "r" else tuple(xp.linalg.qr(A))
    if rest := -m % p:
        A = jax.lax.pad(A, xp.zeros((), A.dtype), [(0, rest, 0), (0, 0, 0)])
    Q, R = _factorisation(mesh, axes, mode)(A)
    return Q[:m, :], R


@cache
def _factorisation(mesh: Mesh, axes: tuple[str, ...], mode: str) -> Callable[[Array], tuple[Array, Array]]:
    def factor(A: Array) -> tuple[Array, Array]:
        if mode == "r":
            return A, xp.linalg.qr(jax.lax.all_gather(xp.linalg.qr(A, mode="r"), axes, tiled=True), mode="r")
        Q, R = xp.linalg.qr(A)
        inner, R = xp.linalg.qr(jax.lax.all_gather(R, axes, tiled=True))
        n = R.shape[0]
        return Q @ jax.lax.dynamic_slice_in_dim(inner, jax.lax.axis_index(axes) * n, n), R

    rows = PartitionSpec(axes, None)
    # that R is the same on all devices is not seen by the check of shard_map
    return jax.jit(jax.shard_map(factor, mesh=mesh, in_specs=rows, out_specs=(rows, WHOLE), check_vma=False))


def _auto(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def solve_columns(solve: Callable[[Array, Array], Array], R: Array, B: Array, over: Spread) -> Array | None:
    """``solve(R, B)``, of the columns of B by those that have them; None where they are not spread."""
    p = over.size(over.columns)
    if p == 1 or B.ndim != 2 or B.shape[1] % p:
        return None
    columns = PartitionSpec(None, over.columns)
    run = jax.shard_map(solve, mesh=over.mesh, in_specs=(WHOLE, columns), out_specs=columns, check_vma=False)
    found: Array = run(R, B)
    return found


# -- several processes


def host(x: Array) -> np.ndarray:
    """The values of an array; where other processes hold some of them, all processes must ask at once."""
    if not isinstance(x, jax.core.Tracer) and not (x.is_fully_addressable or x.is_fully_replicated):
        with jax.enable_x64(True):
            x = jax.device_put(x, NamedSharding(x.sharding.mesh, WHOLE))
    return np.asarray(x)


def digests(x: Array) -> np.ndarray | None:
    """Of each process a hash of the entries that it holds; None where this one has all of them."""
    if isinstance(x, jax.core.Tracer) or x.is_fully_addressable or x.is_fully_replicated:
        return None
    own = hashlib.blake2b(digest_size=32)
    for part in _own_parts(x):
        own.update(part)
    return np.asarray(multihost_utils.process_allgather(np.frombuffer(own.digest(), np.uint8)))


def _own_parts(x: Array) -> Iterator[bytes]:
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            yield str(shard.index).encode()
            yield np.asarray(shard.data).tobytes()


def first(value: float) -> float:
    """The number of the first process, in all of them."""
    own = np.frombuffer(np.float64(value).tobytes(), np.uint8)  # a float64 would be rounded while the x64 flag is off
    return float(np.asarray(multihost_utils.broadcast_one_to_all(own)).astype(np.uint8).view(np.float64)[0])
