"""Steps that cannot be analysed without running them: plans from a measured forward keep the same promises.

These are tests of other modules, run once more with the mark that turns static profiles off.
"""

import pytest

from test_bad_input import test_sample_input_that_the_model_does_not_take  # noqa: F401
from test_detach import test_after_training, test_detach_restores_everything  # noqa: F401
from test_equality import (  # noqa: F401
    test_sample_input_settles_the_plan_and_leaves_no_trace,
    test_settled_plan_equals_plain,
)
from test_growth import test_wrapping_and_detaching_many_times  # noqa: F401
from test_plan import test_the_plan_is_settled_by_the_first_batch  # noqa: F401
from test_trainer import test_same_losses_with_accumulation_clipping_evaluation_and_resume  # noqa: F401

pytestmark = pytest.mark.fallback
