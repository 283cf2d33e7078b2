"""Models of many kinds at two sizes, a batch and a loss for each, and training that records what must match.

SMALL models train in milliseconds: they show that training is the same. LARGE ones have activations of megabytes, still
small enough for a CPU: they show how much memory it takes. ``make``, ``batch_of`` and the like of this module are those
of SMALL.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import memscale
from memscale import _core
from memscale._trace.model_modules import find_units, param_bytes
from memscale.plans import Plan

IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
HEADS = 4
Batch = tuple[tuple[Any, ...], dict[str, Any]]


def floats(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Encoder(nn.Module):
    def __init__(self, n: int, n_inner: int, n_out: int, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(n, HEADS, n_inner, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(n, n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Recurrent(nn.Module):
    def __init__(self, vocab: int, n_in: int, n: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, n_in)
        self.lstm = nn.LSTM(n_in, n, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(n, vocab)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class SkipList(nn.Module):
    """Skips travel in a list that blocks push to and pop from: blocks that change their inputs."""

    class Down(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n)

        def forward(self, x: torch.Tensor, skips: list[torch.Tensor]) -> torch.Tensor:
            skips.append(x)
            return torch.relu_(self.norm(self.conv(x)))

    class Up(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2 * n, n, 3, padding=1)

        def forward(self, x: torch.Tensor, skips: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.gelu(self.conv(torch.cat([x, skips.pop()], 1)))

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([SkipList.Down(3) for _ in range(2)])
        self.middle = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.GELU()) for _ in range(2)])
        self.up = nn.ModuleList([SkipList.Up(3) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(x, skips)
        for block in self.middle:
            x = block(x)
        for block in self.up:
            x = block(x, skips)
        return x


class UNet(nn.Module):
    """Goes down, and up again with what it saw on the way down."""

    class Block(nn.Module):
        def __init__(self, n_in: int, n_out: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(self.norm(self.conv(x)))

    def __init__(self, n: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([UNet.Block(3, n), UNet.Block(n, 2 * n)])
        self.middle = UNet.Block(2 * n, 2 * n)
        self.up = nn.ModuleList([UNet.Block(4 * n, n), UNet.Block(2 * n, n)])
        self.head = nn.Conv2d(n, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1))
        return self.head(x)


class Tupled(nn.Module):
    """Blocks that pass a pair along, and return a tuple; there is no loss in it."""

    class Block(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.down(nn.functional.gelu(self.up(self.norm(x))))
            return x + y, state + y.mean(1)

    def __init__(self, n: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Tupled.Block(n) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        state = torch.zeros_like(x[:, 0])
        for block in self.blocks:
            x, state = block(x, state)
        return x, state


class Structured(Tupled):
    """The same, returned as a structure."""

    @dataclasses.dataclass
    class Output:
        hidden: torch.Tensor
        state: torch.Tensor
        note: str = ""

    def forward(self, x: torch.Tensor) -> Any:
        return Structured.Output(*super().forward(x), note="done")


class Block(nn.Module):
    """A residual block with dropout; subclasses change one thing."""

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(nn.functional.dropout(torch.relu(self.a(x)), 0.1, self.training))


class Chain(nn.Module):
    def __init__(self, block: Callable[[], nn.Module], n: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(n)])

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for block in self.blocks:
            x = block(x, *args, **kwargs)
        return x


@dataclasses.dataclass(frozen=True)
class Size:
    """The same models at one size.

    Attributes:
        names: the models of this size that tests go through.
        vocab: tokens.
        batch, length: of a batch of text.
        positions: the longest text that a model takes.
        target: length of the text that an encoder and decoder writes.
        width: of a transformer's layers.
        inner: of their feed-forward part.
        image, patch: edges of an image and of ViT's patches.
        labels: classes.
        channels: of convolutions.
        features, rows: of the inputs of the multi-layer perceptron.
        mels, frames: of Whisper's input.
        llama_dropout: of Llama and Mixtral. Without it their attention is a fused kernel.
        use_cache: are models built with transformers' key-value cache, as by default? Wrapped training turns it off.
        positional: are tokens passed by position, labels by name?
    """

    names: tuple[str, ...]
    vocab: int
    batch: int
    length: int
    positions: int
    target: int
    width: int
    inner: int
    image: int
    patch: int
    labels: int
    channels: int
    features: int
    rows: int
    mels: int
    frames: int
    llama_dropout: float
    use_cache: bool
    positional: bool

    # Batches

    def tokens(self, *shape: int, seed: int = 1) -> torch.Tensor:
        return torch.randint(3, self.vocab, shape, generator=torch.Generator().manual_seed(seed))

    def lm(self) -> Batch:
        x = self.tokens(self.batch, self.length)
        return ((x,), {"labels": x}) if self.positional else ((), {"input_ids": x, "labels": x})

    def _seq2seq(self) -> Batch:
        labels = self.tokens(self.batch, self.target, seed=2)
        return (), {"input_ids": self.tokens(self.batch, self.length), "labels": labels}

    def _speech(self) -> Batch:
        sound = floats(self.batch, self.mels, 2 * self.frames)
        return (), {"input_features": sound, "labels": self.tokens(self.batch, self.target)}

    def _image(self) -> Batch:
        return (), {"pixel_values": self._pixels()[0][0], "labels": torch.arange(self.batch)}

    def _pixels(self) -> Batch:
        return (floats(self.batch, 3, self.image, self.image),), {}

    def _hidden(self) -> Batch:
        return (floats(self.batch, self.length, self.width),), {}

    def _text(self) -> Batch:
        return (self.tokens(self.batch, self.length),), {}

    def _rows(self) -> Batch:
        return (floats(self.rows, self.features),), {}

    # Models

    def gpt2(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        sizes = {"vocab_size": self.vocab, "n_positions": self.positions, "n_embd": self.width}
        settings = {"use_cache": False, **sizes, **IDS, **drops, **changes}
        config = hf.GPT2Config(n_layer=3, n_head=HEADS, **settings)
        config.loss_type = "ForCausalLM"
        return hf.GPT2LMHeadModel(config)

    def _layers(self) -> dict[str, Any]:
        """The sizes that most configs have by these names."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": 3,
            "num_attention_heads": HEADS,
            "intermediate_size": self.inner,
        }

    def _text_layers(self) -> dict[str, Any]:
        return {**self._layers(), "vocab_size": self.vocab, "max_position_embeddings": self.positions}

    def _bert_like(self, kind: Any, model: Any, dropout: float, changes: dict[str, Any]) -> nn.Module:
        drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return model(kind(**{**self._text_layers(), "pad_token_id": 2, **drops, **changes}))

    def bert(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        return self._bert_like(hf.BertConfig, hf.BertForMaskedLM, dropout, changes)

    def albert(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        """One block, called several times."""
        changes = {"embedding_size": self.width // 2, **changes}
        return self._bert_like(hf.AlbertConfig, hf.AlbertForMaskedLM, dropout, changes)

    def distilbert(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        config = hf.DistilBertConfig(
            vocab_size=self.vocab,
            dim=self.width,
            n_layers=3,
            n_heads=HEADS,
            hidden_dim=self.inner,
            max_position_embeddings=self.positions,
            dropout=dropout,
            attention_dropout=dropout,
            pad_token_id=2,
            **changes,
        )
        return hf.DistilBertForMaskedLM(config)

    def _llama_like(self, dropout: float | None, changes: dict[str, Any]) -> dict[str, Any]:
        drop = self.llama_dropout if dropout is None else dropout
        settings = {"use_cache": self.use_cache, "attention_dropout": drop, "num_key_value_heads": 2}
        return {**self._text_layers(), **settings, **IDS, **changes}

    def llama(self, dropout: float | None = None, **changes: Any) -> nn.Module:
        return hf.LlamaForCausalLM(hf.LlamaConfig(**self._llama_like(dropout, changes)))

    def mixtral(self, dropout: float | None = None, **changes: Any) -> nn.Module:
        """A mixture of experts: routing depends on the data."""
        experts = {"num_hidden_layers": 2, "intermediate_size": self.width, "num_local_experts": 4}
        return hf.MixtralForCausalLM(hf.MixtralConfig(**self._llama_like(dropout, {**experts, **changes})))

    def t5(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        config = hf.T5Config(
            vocab_size=self.vocab,
            d_model=self.width,
            d_kv=self.width // HEADS,
            d_ff=self.inner,
            num_layers=2,
            num_heads=HEADS,
            dropout_rate=dropout,
            decoder_start_token_id=0,
            pad_token_id=2,
            eos_token_id=1,
            use_cache=False,
            **changes,
        )
        return hf.T5ForConditionalGeneration(config)

    def whisper(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        """Encoder and decoder; the encoder's output feeds every block of the decoder."""
        config = hf.WhisperConfig(
            vocab_size=self.vocab,
            d_model=self.width,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=self.inner,
            decoder_ffn_dim=self.inner,
            num_mel_bins=self.mels,
            max_source_positions=self.frames,
            max_target_positions=self.positions,
            dropout=dropout,
            decoder_start_token_id=0,
            use_cache=self.use_cache,
            **IDS,
            **changes,
        )
        return hf.WhisperForConditionalGeneration(config)

    def vit(self, dropout: float = 0.1, **changes: Any) -> nn.Module:
        drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        picture = {"image_size": self.image, "patch_size": self.patch, "num_labels": self.labels}
        return hf.ViTForImageClassification(hf.ViTConfig(**{**self._layers(), **picture, **drops, **changes}))

    def resnet(self) -> nn.Module:
        n = self.channels
        sizes = {"embedding_size": n, "hidden_sizes": [n, 2 * n], "depths": [2, 2]}
        return hf.ResNetForImageClassification(hf.ResNetConfig(**sizes, layer_type="basic", num_labels=self.labels))

    def encoder(self, dropout: float = 0.1) -> nn.Module:
        return Encoder(self.width, self.inner, self.labels, dropout)

    def lstm(self) -> nn.Module:
        return Recurrent(self.vocab, self.width // 2, self.width)

    def mlp(self) -> nn.Module:
        n = 4 * self.features
        return nn.Sequential(
            nn.Linear(self.features, n),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(n, n),
            nn.ReLU(inplace=True),
            nn.BatchNorm1d(n),
            nn.Linear(n, n),
            nn.ReLU(inplace=True),
            nn.Linear(n, self.labels),
        )

    def unet(self) -> nn.Module:
        return UNet(self.channels // 2)

    def make(self, name: str, **changes: Any) -> nn.Module:
        torch.manual_seed(0)
        return KINDS[name][0](self, **changes).train()

    def batch_of(self, name: str) -> Batch:
        return KINDS[name][1](self)


class Sentences(torch.utils.data.Dataset):
    """Rows of tokens, each with itself as labels."""

    def __init__(self, n, seed):
        self.rows = tokens(n, 12, seed=seed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


KINDS: dict[str, tuple[Callable[..., nn.Module], Callable[[Size], Batch]]] = {
    "gpt2": (Size.gpt2, Size.lm),
    "bert": (Size.bert, Size.lm),
    "llama": (Size.llama, Size.lm),
    "t5": (Size.t5, Size._seq2seq),
    "vit": (Size.vit, Size._image),
    "resnet": (Size.resnet, Size._image),
    "albert": (Size.albert, Size.lm),
    "distilbert": (Size.distilbert, Size.lm),
    "mixtral": (Size.mixtral, Size.lm),
    "whisper": (Size.whisper, Size._speech),
    "unet": (Size.unet, Size._pixels),
    "skips": (lambda size: SkipList(), Size._pixels),
    "encoder": (Size.encoder, Size._hidden),
    "lstm": (Size.lstm, Size._text),
    "mlp": (Size.mlp, Size._rows),
    "tuple": (lambda size: Tupled(size.width), Size._hidden),
    "dataclass": (lambda size: Structured(size.width), Size._hidden),
}

_BOTH = ("gpt2", "bert", "llama", "t5", "vit", "resnet", "albert", "mixtral", "whisper", "encoder", "lstm", "mlp")

SMALL = Size(
    names=(*_BOTH, "skips"),
    vocab=64,
    batch=2,
    length=12,
    positions=32,
    target=7,
    width=32,
    inner=64,
    image=16,
    patch=4,
    labels=4,
    channels=8,
    features=16,
    rows=6,
    mels=8,
    frames=16,
    llama_dropout=0.1,
    use_cache=True,
    positional=True,
)
LARGE = Size(
    names=(*_BOTH, "distilbert", "unet", "tuple", "dataclass"),
    vocab=512,
    batch=4,
    length=96,
    positions=96,
    target=48,
    width=128,
    inner=256,
    image=64,
    patch=8,
    labels=10,
    channels=32,
    features=64,
    rows=512,
    mels=40,
    frames=96,
    llama_dropout=0.0,
    use_cache=False,
    positional=False,
)
make, batch_of, tokens = SMALL.make, SMALL.batch_of, SMALL.tokens
gpt2, llama = SMALL.gpt2, SMALL.llama


def move(batch: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A batch on another device; floating-point inputs in another type."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, dtype) if batch.is_floating_point() else batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device, dtype) for key, value in batch.items()}
    return tuple(move(value, device, dtype) for value in batch)


def loss_of(output: Any) -> torch.Tensor:
    """A model's own loss, or something that needs all of its output."""
    if isinstance(output, torch.Tensor):
        return output.float().pow(2).mean()
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        return output.loss
    parts = output if isinstance(output, tuple) else (output.hidden, output.state)
    return parts[0].float().pow(2).mean() + parts[1].sum()


@functools.cache
def _some_plan() -> str:
    """A plan as the engine writes it, with one layer."""
    return memscale.plan(nn.Sequential(nn.Linear(4, 4)), floats(2, 4)).to_json()


def device_with(device: _core.Device, **changes: Any) -> _core.Device:
    """A device that differs from another."""
    fields = ("kind", "name", "rates", "n_multiprocessors", "usable_bytes")
    return _core.Device(**{**{field: getattr(device, field) for field in fields}, **changes})


def empty_profile() -> _core.Profile:
    """Of a model without layers, whose step does nothing."""
    lists = ("numbers", "costs", "scratches", "keys", "rest", "classes", "units", "order")
    step = {"batch": 0, "length": 0, "recomputed": False, **{name: [] for name in lists}}
    profile = {"memscale_profile": 4, "resident_bytes": 0, "outside_bytes": 0, "units": [], "step": step}
    return _core.profile_from_json(json.dumps(profile))


Schedule = Sequence[tuple[int, int]]  # by layer: when what is offloaded leaves, and when it is fetched


def plan_of(model: nn.Module, actions: Sequence[str], schedule: Schedule | None = None) -> Plan:
    """A plan with these actions, by identifiers, in turn, even if they save nothing; as it would be in a file."""
    with torch.random.fork_rng():  # the first call makes a model
        document = json.loads(_some_plan())
    entry = document["units"][0]
    document["peak_unit"] = -1
    document["units"] = [
        {**entry, "name": name, "param_bytes": param_bytes(module), "action": actions[i % len(actions)]}
        for i, (name, module) in enumerate(find_units(model).items())
    ]
    for unit, (leaves_after, fetched_before) in zip(document["units"], schedule or ()):
        unit |= {"leaves_after": leaves_after, "fetched_before": fetched_before}
    return Plan.from_json(json.dumps(document))


def recompute_plan(model: nn.Module) -> Plan:
    """A plan that recomputes every layer."""
    return plan_of(model, ["recompute"])


@contextlib.contextmanager
def plain_or_skip(*, autocast: bool) -> Iterator[None]:
    """For what a plain model does. Not every processor has kernels for all of bf16: where torch says that it has none,
    the test is skipped with torch's words."""
    try:
        yield
    except RuntimeError as error:
        if not autocast:
            raise
        pytest.skip(f"torch does not run this here: {error}")


def train_or_skip(model: nn.Module, batch: Batch, *, autocast: bool, **options: Any) -> dict[str, Any]:
    """Train a plain model, as :func:`train` does."""
    with plain_or_skip(autocast=autocast):
        return train(model, batch, autocast=autocast, **options)


def wrap_with(model: nn.Module, actions: Sequence[str], schedule: Schedule | None = None, **config: Any) -> nn.Module:
    """Wrap with a plan of these actions, which layers get in turn."""
    settings = memscale.Config(enable_logging=False, **config)
    return memscale.wrap(model, settings, plan=plan_of(model, actions, schedule))


def everything_recomputed(model: nn.Module, **config: Any) -> nn.Module:
    """Wrap with a plan that recomputes every layer."""
    return wrap_with(model, ["recompute"], **config)


def train(
    model: nn.Module, batch: Batch, steps: int = 3, autocast: bool = False, accumulate: int = 1, seed: int = 7
) -> dict[str, Any]:
    """Train a few steps where the model is; losses, gradients, parameters, buffers and random state at the end."""
    first = next(model.parameters())
    args, kwargs = copy.deepcopy(batch) if first.device.type == "cpu" else move(batch, first.device, first.dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(seed)
    record: dict[str, Any] = {"losses": [], "gradients": []}
    for _ in range(steps):
        for _ in range(accumulate):
            with torch.autocast(first.device.type, torch.bfloat16, enabled=autocast):
                loss = loss_of(model(*args, **kwargs))
            loss.backward()
            record["losses"].append(loss.detach().clone())
        record["gradients"].append({n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    record["state"] = {name: value.clone() for name, value in model.state_dict().items()}
    record["random"] = torch.get_rng_state()
    if first.is_cuda:
        record["random of the GPU"] = torch.cuda.get_rng_state(first.device)
    return record


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal bit for bit, in nested records."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), where
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        same = torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
        assert same, f"{where}: differs by {(a.double() - b.double()).abs().max()}"
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where
