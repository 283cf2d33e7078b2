"""A hand-written training loop with MemScale: two lines more than without.

python examples/hand_loop.py
"""

import torch
from torch import nn

import memscale


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Model(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> float:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # A budget makes MemScale act on this small model: the fastest plan within 0.006 GB.
    memscale.wrap(model, memscale.Config(memory_budget_gb=0.006))

    for step in range(30):
        x = torch.randn(256, 64, device=device)
        loss = (model(x) - x.mean(-1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}")

    print(memscale.executor_of(model).plan)
    memscale.detach(model)  # everything is as it was
    return loss.item()


if __name__ == "__main__":
    main()
