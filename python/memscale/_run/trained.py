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
        self.parameters: list[nn.Parameter] = []
        self.kind: object = None
        self.find(model)

    def find(self, model: nn.Module) -> None:
        """List the model's parameters again: some may be new, such as adapters, and others gone."""
        self._all = list(model.parameters())
        self._ids = tuple(map(id, self._all))
        self._look()

    def look(self, model: nn.Module) -> bool:
        """Look which of them are trained, as before every step. False: none is."""
        self._look()
        if not self.parameters:
            self.find(model)
        return bool(self.parameters)

    def _look(self) -> None:
        ends = self._all[:1] + self._all[-1:]
        kind = self._ids, bytes(map(_requires_grad, self._all)), tuple(p.dtype for p in ends)
        if kind != self.kind:
            self.kind = kind
            self.parameters[:] = filter(_requires_grad, self._all)
