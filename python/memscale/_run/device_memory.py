"""The memory of a wrapped model's device: the cap on torch's allocator, segments that grow, what is occupied by others,
and steps that ran out of memory.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable

import torch

from .. import _core
from .._hw.torch_allocator import can_grow, occupied_bytes, return_cache
from .._plan.by_shape import Planner
from .._show.text import size
from ..config import Config
from ..plans import Plan
from .torch_state import AllocatorCap, GrowingSegments

_MAX_SETTLED = 16  # times, until a plan needs more
_ROUNDED = 2 << 20  # large requests are rounded to multiples of this
_ROOM = 128 << 20  # left for small blocks, which are elsewhere, and for what a block's last granule is larger


class DeviceMemory:
    """The memory of one wrapped model's device. On a CPU most of it does nothing."""

    def __init__(
        self,
        device: torch.device,
        config: Config,
        planner: Planner,
        trainable: list[torch.nn.Parameter],
        warn: Callable[[str], None],
    ) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._config = config
        self._planner = planner
        self._trainable = trainable
        self._warn = warn
        self._cap: AllocatorCap | None = None
        self._growing: GrowingSegments | None = None
        self._has_failed = False  # a step ran out of memory, and nothing was done about it yet
        self._failed: Plan | None = None  # what it ran with, until it is planned for again
        self._is_finished = False  # an optimizer has stepped since the last forward
        self._counts = self._count()
        self._most_bytes = 0  # that any plan so far needs
        self._n_steps = 0  # that began since the plan that needs them came into use
        self._n_settled = 0

    def attach(self) -> None:
        """A budget that the user has set is a wall."""
        if self._is_gpu and self._config.memory_budget_gb is not None:
            self._cap = AllocatorCap(self._device, self._cap_bytes())

    def _cap_bytes(self) -> int:
        return self._planner.request.core.cap(0)

    def release(self) -> None:
        if self._cap is not None:
            self._cap.release()
        if self._growing is not None:
            self._growing.release()
            self._growing = None
        self._most_bytes = 0

    def use(self, plan: Plan) -> None:
        """Steps run with this plan from now on."""
        if plan.needed_bytes > self._most_bytes:  # plans of several sizes may take turns at every step
            self._most_bytes = plan.needed_bytes
            self._n_steps = self._n_settled = 0
        self._counts = self._count()  # what failed before was not a step with this plan
        if plan.grows or plan.n_changed > 0:  # whatever a plan says that was made elsewhere
            self.grow()

    def grow(self) -> None:
        """Let segments of torch's allocator grow from now on, where they can."""
        if self._is_gpu and self._growing is None and can_grow(self._device):
            self._growing = GrowingSegments()

    @property
    def is_growing(self) -> bool:
        """Do segments of torch's allocator grow?"""
        return self._growing is not None and self._growing.works

    # What is occupied

    def see_occupied(self) -> None:
        """Before a plan is made: count what torch's allocator holds besides the step."""
        if self._is_gpu and self._planner.profile is not None:
            self._planner.occupy(self._occupied())

    def _occupied(self) -> int:
        gradients = [p.grad for p in self._trainable if p.grad is not None]
        states = [o.state[p] for o in self._planner.optimizers for p in self._trainable if p in o.state]
        return occupied_bytes(self._device, self._planner.start_bytes(), [*gradients, *_core.tensors_in(states)])

    # Before each step

    def count_step(self) -> None:
        """A step begins with the plan that is in use."""
        self._n_steps += 1

    def _count(self) -> tuple[int, int]:
        """How often torch's allocator ran out of memory, and how often it had to return memory first."""
        if not self._is_gpu or not torch.cuda.is_initialized():
            return 0, 0
        counts = torch.cuda.memory_stats_as_nested_dict(self._device)
        return int(counts.get("num_ooms", 0)), int(counts.get("num_alloc_retries", 0))

    def begin_step(self, plan: Plan | None, *, held: bool) -> bool:
        """Look at the last step: did it run out of memory, or did torch's allocator have to return memory?

        Args:
            plan: with which it ran; None: there was none yet.
            held: gradients exist now.

        Returns:
            Whether plans have to be made anew, with less memory.
        """
        is_finished, self._is_finished = self._is_finished, False
        if plan is None:
            self.forget_failure()  # nothing was planned that could be wrong
            return False
        if self._is_gpu and (plan.grows or plan.needed_bytes > plan.budget_bytes // 2):  # else it is most unlikely
            counts = self._count()
            self._has_failed = (counts[0] > self._counts[0] and not is_finished) or self._has_failed
            has_retried = counts[1] > self._counts[1]
            self._counts = counts
            if self.is_growing and not self._has_failed:
                self._settle(plan, has_retried, held)
        return self._has_failed and self._recover(plan)

    def _is_over(self, held: bool) -> bool:
        """Is the step before over? Gradients that exist are accumulated or, once the optimizer has state, set to
        zero."""
        return not held or any(optimizer.state for optimizer in self._planner.optimizers)

    def _settle(self, plan: Plan, has_retried: bool, held: bool) -> None:
        """Take the memory of a step at once: after the first step with a plan that needs more than those before, and
        after a step that had to return memory.

        The first step is another than those that follow: units are checked, and the optimizer makes its state. Its
        unused memory is returned. Under a cap torch counts a request as new memory even if most of it is there
        already; if the memory of the step is there as one block, no request needs more. Where steps of several sizes
        take turns, each request that needs more may be such a one, from the first time that memory is returned on.
        """
        is_first = self._n_settled == 0
        if self._n_steps == 0 or (is_first and not self._is_over(held)):
            return
        if not is_first and not (has_retried and not plan.is_cramped and self._n_settled < _MAX_SETTLED):
            return
        self._n_settled += 1
        torch.cuda.empty_cache()
        if self._cap is None or plan.is_cramped:
            return
        cap, most = self._cap_bytes(), self._planner.occupied_bytes + plan.needed_bytes + plan.margin_bytes // 2
        wanted = most if is_first else max(most, cap - _ROOM)
        missing = min(cap, wanted) - int(torch.cuda.memory_reserved(self._device))
        missing -= missing % _ROUNDED  # torch rounds up, and the sum may be the cap
        if missing > 0:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(missing, dtype=torch.uint8, device=self._device)
            self._counts = self._count()  # if it failed, that was not the step

    # Out of memory

    def see_error(self, *, is_step: bool) -> None:
        """A forward, that of a step or of an evaluation, has raised what is being handled now."""
        if not isinstance(sys.exc_info()[1], torch.OutOfMemoryError):
            return
        if is_step:
            self._has_failed = True
        else:
            self.forget_failure()

    def forget_failure(self) -> None:
        """What has failed was no step with a plan."""
        self._has_failed, self._counts = False, self._count()

    def forgive(self) -> None:
        """What ran out of memory just now is something that the step does without."""
        self._counts = (self._count()[0], self._counts[1])

    def end_step(self, *, is_ours: bool) -> None:
        """An optimizer has stepped: if it is ours, what runs out of memory until the next forward is not the step."""
        self._is_finished = self._is_finished or is_ours

    def _recover(self, plan: Plan) -> bool:
        """Say what was planned and what was there, and plan with less memory if that is wanted: was it?"""
        occupied = self._planner.occupied_bytes
        if self._is_gpu:
            gc.collect()  # an exception and the frames of the step that it failed in often hold each other
            return_cache(self._device)
            occupied = self._occupied() if self._planner.profile is not None else occupied
        self._warn(self._report(plan, occupied))
        self._has_failed, self._counts = False, self._count()
        if self._config.on_oom != "replan" or self._planner.profile is None:
            return False
        self._planner.occupy(occupied)
        self._planner.tighten(plan)
        self._failed = plan
        return True

    def see_next(self, plan: Plan) -> None:
        """The plan of a step like the one before. If that ran out of memory, does this one need less?"""
        failed, self._failed = self._failed, None
        if failed is not None and plan.needed_bytes >= failed.needed_bytes:
            self._warn("no plan needs less memory; a smaller batch does")

    def _report(self, plan: Plan, occupied: int) -> str:
        parts = [
            f"a step ran out of memory. Its plan needs {size(plan.needed_bytes)} of {size(plan.budget_bytes)}, "
            f"with a predicted peak of {size(plan.predicted_peak_bytes)}"
        ]
        if self._is_gpu:
            peak, reserved = torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)
            free, _ = torch.cuda.mem_get_info(self._device)
            parts.append(f"at most {size(peak)} were allocated and {size(reserved)} reserved")
            parts.append(f"{size(int(free))} of the device are free now")
        before = self._planner.occupied_bytes
        if occupied != before:
            parts.append(
                f"other tensors and fragments hold {size(occupied)}, and held {size(before)} when the plan was made"
            )
        return "; ".join(parts)
