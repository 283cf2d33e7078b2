"""Which parameters of a model are trained: that may change at any time."""

from __future__ import annotations

from operator import attrgetter

from torch import nn

_requires_grad = attrgetter("requires_grad")


class Trained:
    """The parameters of a model that are trained.

    Attributes:
        parameters: which they are; the same list for good.
        kind: of the step: which parameters are trained, and of which types they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._all = list(model.parameters())
        self.parameters: list[nn.Parameter] = []
        self.kind: object = None
        self.look()

    def look(self) -> bool:
        """Look again, as before every step: has the kind of the step changed?"""
        ends = self._all[:1] + self._all[-1:]
        kind = bytes(map(_requires_grad, self._all)), tuple(p.dtype for p in ends)
        if kind == self.kind:
            return False
        self.kind = kind
        self.parameters[:] = filter(_requires_grad, self._all)
        return True
