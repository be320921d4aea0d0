"""What first-order methods have to offer so that quasi-Newton steps can take turns with theirs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from xvarpro.algorithms._common import add
from xvarpro.protocols import Algorithm, Array, Leaves
from xvarpro.trees import axpy, scaled, sub


class FirstOrder(Algorithm):
    """A method whose states have `iterate` and `grad`, the gradient there, and that can go on from another point."""

    @abstractmethod
    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        """The part of a direction that stays in the face of theta."""

    @abstractmethod
    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        """The feasible direction that stands for `d`, for steps up to 1."""

    @abstractmethod
    def length(self, state: Any) -> Array:
        """The length of a gradient step from here."""

    @abstractmethod
    def direction(self, f: Any, region: Any, state: Any) -> tuple[Leaves, Any]:
        """A feasible direction of descent that may leave the face, and the state with its work counted."""

    @abstractmethod
    def resumed(self, f: Any, region: Any, state: Any, d: Leaves, alpha: Array, point: Any, values: Any) -> Any:
        """The state after a step alpha along d to `point`, found with that many values."""


def worked(state: Any, **work: Any) -> Any:
    """The state with work counted."""
    iterate = state.iterate
    return state._replace(iterate=iterate._replace(counts=add(iterate.counts, **work)))


class Projecting(FirstOrder):
    """Steps that leave a set are projected back onto it."""

    needs_projection = True

    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return region.tangent(d, theta)

    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.project(axpy(1.0, d, theta)), theta)

    def direction(self, f: Any, region: Any, state: Any) -> tuple[Leaves, Any]:
        d = self.toward(f, region, scaled(-self.length(state), state.grad), state.iterate.theta)
        return d, worked(state, projections=1)


class InFace(FirstOrder):
    """Steps turn into each face that they meet; sets without faces stay where they are."""

    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        d = region.tangent(d, theta)
        without = {i for i, C in region.constrained if not C.has_faces}
        return tuple(0 * x if i in without else x for i, x in enumerate(d))

    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.slide(f.backend, d, theta), theta)
