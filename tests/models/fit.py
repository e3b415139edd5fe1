"""Models of tens of megabytes whose memory is estimated and measured, as users write them."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it


def mlp():
    """Layers that are units, on a batch that needs no gradient."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(1024, 1536), nn.Linear(1536, 1024)

        def forward(self, x):
            return x + self.down(F.relu(self.up(x)))

    model = nn.Sequential(nn.Linear(512, 1024), nn.Sequential(*(Block() for _ in range(5))), nn.Linear(1024, 10))
    return {
        "model": model,
        "make_batch": lambda step: (torch.randn(256, 512), torch.randint(10, (256,))),
        "loss": lambda output, batch: F.cross_entropy(output, batch[1]),
    }


def cnn():
    """Residual blocks with BatchNorm; activations are most of its memory."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
            self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x):
            return F.relu(x + self.norm_two(self.two(F.relu(self.norm_one(self.one(x))))))

    stem, rest = nn.Conv2d(3, 256, 3, stride=2, padding=1), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(stem, nn.Sequential(*(Block(256) for _ in range(5))), rest, nn.Linear(256, 10))
    return {
        "model": model,
        "make_batch": lambda step: (torch.randn(8, 3, 32, 32), torch.randint(10, (8,))),
        "loss": lambda output, batch: F.cross_entropy(output, batch[1]),
    }


def encoder():
    layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True)
    return {
        "model": nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
        "make_batch": lambda step: torch.randn(8, 96, 384),
        "loss": lambda output, batch: output.square().mean(),
    }


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=4000,
        use_cache=False,
    )

    def make_batch(step):
        ids = torch.randint(4000, (4, 128))
        return {"input_ids": ids, "labels": ids}

    return LlamaForCausalLM(config), make_batch


class _Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6000, 384)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True, norm_first=True) for _ in range(6)
        )
        self.head = nn.Linear(384, 6000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def tied():
    """A model of language whose first and last weights are one."""
    return {
        "model": _Gpt(),
        "make_batch": lambda step: torch.randint(6000, (4, 96)),
        "loss": lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch.flatten()),
    }


def lora():
    """Frozen layers, each with a small trainable pair."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(1280, 1280).requires_grad_(False)
            self.down, self.up = nn.Linear(1280, 8, bias=False), nn.Linear(8, 1280, bias=False)

        def forward(self, x):
            return F.gelu(self.frozen(x) + self.up(self.down(x)))

    return {
        "model": nn.Sequential(*(Adapted() for _ in range(8))),
        "make_batch": lambda step: torch.randn(256, 1280),
        "loss": lambda output, batch: output.square().mean(),
    }
