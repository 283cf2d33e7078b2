"""In a notebook's kernel, which has threads, sockets and streams of its own: cells go on as if nothing had happened."""

import sys

import pytest
from jupyter_client.manager import start_new_kernel

CELL = """
import torch, memscale
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(3)))
memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
class Loud(torch.nn.Module):
    def forward(self, x):
        print("forward")
        return x
model.append(Loud())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
print("source", memscale.profile(model, torch.ones(4, 16)).source, memscale.executor_of(model).plan is not None)
"""


@pytest.fixture
def kernel():
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120, extra_arguments=["--colors=NoColor"])
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code):
    """What a cell prints."""
    printed = []
    reply = client.execute_interactive(
        code, timeout=120, output_hook=lambda message: printed.append(message["content"].get("text", ""))
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(printed)


def test_cells_that_analyse_a_step(kernel):
    paths = "\n".join(f"sys.path.append({path!r})" for path in sys.path)
    run(kernel, f"import sys\n{paths}")
    for _ in range(3):
        assert run(kernel, CELL).splitlines() == ["forward", "forward", "source static True"]
    assert run(kernel, "print(6 * 7)") == "42\n"
