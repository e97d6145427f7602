"""A GPT: a decoder-only transformer with learned positions, pre-norm blocks and a head tied to the token embedding. The shape and the
initialisation are GPT-2's (Radford et al., 2019), without dropout, so that a resumed run needs no random state to go on exactly."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT. `width` is a multiple of `heads`."""

    characters: int
    block: int
    layers: int
    heads: int
    width: int


class CausalSelfAttention(nn.Module):
    """Each position looks at itself and at those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, time, width))
        return mixed


class Block(nn.Module):
    """Attention and a perceptron; each normalises its input, and its output is added to the input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = CausalSelfAttention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(shape.characters, shape.width)
        self.position = nn.Embedding(shape.block, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # The last matrix of a branch adds to the residual stream, into which 2 * layers branches flow.
                ends_branch = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if ends_branch else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, characters); time is at most `shape.block`."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)

    @torch.no_grad()
    def sample(self, prompt: list[int], *, length: int, seed: int, temperature: float = 0.8) -> list[int]:
        """Continues a prompt. Returns the added tokens. `prompt`: at least one token. `seed`: the same seed gives the same text.
        `temperature`: below 1 for the likelier characters."""
        generator = torch.Generator().manual_seed(seed)
        tokens = list(prompt)
        for _ in range(length):
            context = torch.tensor([tokens[-self.shape.block :]], device=self.token.weight.device)
            likelihood = F.softmax(self(context)[0, -1].float().cpu() / temperature, dim=-1)
            tokens.append(int(torch.multinomial(likelihood, 1, generator=generator)))
        return tokens[len(prompt) :]


def make_optimizer(model: GPT) -> torch.optim.AdamW:
    """AdamW that decays matrices, and leaves biases and norms alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=BETAS)
