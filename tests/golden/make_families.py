"""Writes qwen2*/, qwen3*/, gemma2/ and gemma3/: tiny models, their logits.

Run once by hand, in an environment of its own:

  pip install torch==2.13.0 transformers==5.12.1
  python make_families.py

Windows are shorter than a row, so that a local layer that reads all is seen;
every weight that may be absent (biases, norms over heads, norms after a part)
is far from what would hide it. Gemma 2 has both softcaps.
"""

import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
TOKENS = 24

SIZES = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    pad_token_id=0,
    eos_token_id=[2, 3],
)
# (class, settings, dtype of the file)
MODELS = {
    "qwen2": ("Qwen2", dict(
        num_hidden_layers=2,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=100.0),
    ), "bfloat16"),
    # Wavelengths 6.3 to 199 against 32 tokens: with these rotations the ramp
    # runs over the four pairs.
    "qwen2_yarn": ("Qwen2", dict(
        num_hidden_layers=3,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=100.0, factor=4.0,
            original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5,
        ),
    ), "float32"),
    "qwen3": ("Qwen3", dict(
        num_hidden_layers=2,
        head_dim=12,
        tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0),
    ), "bfloat16"),
    "gemma2": ("Gemma2", dict(
        num_hidden_layers=3,
        head_dim=12,
        query_pre_attn_scalar=24,
        sliding_window=7,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        rope_parameters=dict(rope_type="default", rope_theta=100.0),
    ), "float32"),
    "gemma3": ("Gemma3Text", dict(
        num_hidden_layers=4,
        num_key_value_heads=1,
        head_dim=12,
        query_pre_attn_scalar=24,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters=dict(
            full_attention=dict(
                rope_type="linear", rope_theta=1000.0, factor=4.0
            ),
            sliding_attention=dict(rope_type="default", rope_theta=50.0),
        ),
    ), "bfloat16"),
}


def fill(model):
  """Draws weights of a size at which every part matters."""
  with torch.no_grad():
    for key, parameter in model.named_parameters():
      if "norm" in key:  # Ones would hide a norm that is not applied.
        parameter.uniform_(0.5, 1.5)
      elif "bias" in key:
        parameter.normal_(0.0, 1.0)
      elif "embed" in key:
        parameter.normal_(0.0, 1.0)
      else:  # Large enough that attention is not uniform.
        parameter.normal_(0.0, 0.3)


def main():
  for seed, (name, (kind, sizes, dtype)) in enumerate(MODELS.items()):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**SIZES | sizes)
    head = kind.removesuffix("Text") + "ForCausalLM"
    network = getattr(transformers, head)
    model = network(config)
    fill(model)
    model.to(getattr(torch, dtype)).save_pretrained(HERE / name)
    # Read back: casting a model also rounds its rotary frequencies.
    model = network.from_pretrained(
        HERE / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = torch.randint(4, config.vocab_size, (2, TOKENS))
    with torch.no_grad():
      logits = model(tokens, attention_mask=torch.ones_like(tokens)).logits
    np.savez_compressed(
        HERE / name / "expected.npz",
        tokens=tokens.numpy().astype(np.int32),
        logits=logits.numpy(),
    )


if __name__ == "__main__":
  main()
