"""Greedy generation by a GPT-2 of 124 M parameters with PyTorch on CPU: f32, one sequence, keys and values kept.

  python torch_generate.py eager|compile [--tokens N] [--threads N]

Prints one JSON line: the median of the tokens in milliseconds."""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

VOCAB, SEQ, EMBED, HEADS, DEPTH = 50257, 1024, 768, 12, 12


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear = torch.nn.Linear
        self.norm1, self.norm2 = torch.nn.LayerNorm(EMBED), torch.nn.LayerNorm(EMBED)
        self.project, self.out = linear(EMBED, 3 * EMBED), linear(EMBED, EMBED)
        self.up, self.down = linear(EMBED, 4 * EMBED), linear(4 * EMBED, EMBED)
        for name in "keys", "values":
            self.register_buffer(name, torch.zeros(1, HEADS, SEQ, EMBED // HEADS))

    def forward(self, x, position):
        q, k, v = self.project(self.norm1(x)).view(1, 1, 3, HEADS, EMBED // HEADS).permute(2, 0, 3, 1, 4)
        self.keys[:, :, position : position + 1] = k
        self.values[:, :, position : position + 1] = v
        seen = slice(0, position + 1)
        y = F.scaled_dot_product_attention(q, self.keys[:, :, seen], self.values[:, :, seen])
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, EMBED))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(VOCAB, EMBED), torch.nn.Embedding(SEQ, EMBED)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = torch.nn.LayerNorm(EMBED)

    def forward(self, token, position):
        x = self.tokens(token) + self.positions.weight[position]
        for block in self.blocks:
            x = block(x, position)
        return F.linear(self.norm(x), self.tokens.weight).argmax(-1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["eager", "compile"])
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Model().eval()
    step = torch.compile(model, dynamic=True) if args.mode == "compile" else model
    times = []
    with torch.inference_mode():
        token = torch.zeros(1, 1, dtype=torch.long)
        for position in range(args.tokens):
            start = time.perf_counter()
            token = step(token, position)
            int(token)
            times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"ms_median": statistics.median(times[len(times) // 4 :])}))


if __name__ == "__main__":
    main()
