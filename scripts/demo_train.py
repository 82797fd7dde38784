#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small language model on the bytes of Python's standard library, with plain PyTorch and torch.save.

An ordinary training script: it knows nothing of fastckpt. scripts/demo runs it natively and under `fastckpt run`.
"""

import argparse
import glob
import os
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)  # a byte sees only those before it
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.drop = nn.Dropout(0.1)

    def forward(self, h):
        x = self.norm(h.transpose(1, 2)).transpose(1, 2)
        return h + self.drop(nn.functional.gelu(self.conv(self.pad(x))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*[Block(width, 1 << (i % 6)) for i in range(layers)])
        self.head = nn.Conv1d(width, 256, 1)

    def forward(self, x):
        return self.head(self.blocks(self.bytes(x).transpose(1, 2)))


def load_text(limit=2 << 20):
    text = b""
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, "rb") as f:
            text += f.read()
        if len(text) >= limit:
            break
    return torch.tensor(list(text[:limit]), dtype=torch.long)


def train_step(model, optimizer, text, batch, context):
    at = torch.randint(len(text) - context - 1, (batch,))
    x = torch.stack([text[i:i + context] for i in at])
    y = torch.stack([text[i + 1:i + context + 1] for i in at])
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep, 0: all")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(os.cpu_count())
    text = load_text()
    model = Model(args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])
        step = checkpoint["step"]
        print(f"resumed from step {step}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    saved = []
    while step < args.steps:
        start = time.perf_counter()
        loss = train_step(model, optimizer, text, args.batch, args.context)
        step += 1
        print(f"step {step} loss {loss:.9g} in {time.perf_counter() - start:.4f} s", flush=True)
        if step % args.save_every:
            continue
        path = os.path.join(args.out, f"step-{step:06d}.pt")
        start = time.perf_counter()
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "rng": torch.get_rng_state()}, path)
        print(f"saved {path} in {time.perf_counter() - start:.4f} s", flush=True)
        saved.append(path)
        if args.keep and len(saved) > args.keep:
            start = time.perf_counter()
            old = saved.pop(0)
            os.remove(old)
            print(f"removed {old} in {time.perf_counter() - start:.4f} s", flush=True)


if __name__ == "__main__":
    main()
