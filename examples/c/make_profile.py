"""The sample profile, on standard output: a training step of GPT-2 medium on 4 sequences of 512 tokens, in fp32.

The model is made on the meta device: it takes no memory, and nothing runs.

    python examples/c/make_profile.py > examples/c/gpt2_medium.json
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import memscale

with torch.device("meta"):
    model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
    tokens = torch.zeros(4, 512, dtype=torch.long)

profile = memscale.profile(model, {"input_ids": tokens, "labels": tokens}, device="rtx3090")
sys.stdout.write(profile.to_json())
