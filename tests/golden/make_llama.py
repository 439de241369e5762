"""Writes llama_tied.*/llama_untied.*: tiny Llamas and transformers' logits.

Run once by hand, in an environment of its own:

  pip install torch==2.13.0 transformers==5.24.0
  python make_llama.py

Two checkpoints cover what a file may vary: tied embeddings, llama3 rotary
scaling, two query heads per kv-head, bfloat16; and an untied head, linear
scaling, three query heads per kv-head of a width that is not D / N, float32.
"""

import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
TOKENS = 24

SIZES = dict(
    vocab_size=96,
    num_hidden_layers=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    pad_token_id=0,
)
MODELS = {
    "llama_tied": dict(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=[2, 3],
        # Wavelengths 6.3, 19.9, 62.8 and 199 against bounds of 12 and 48: one
        # frequency stays, one lies between, two are divided by the factor.
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=100.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=48,
        ),
    ),
    "llama_untied": dict(
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=12,
        tie_word_embeddings=False,
        eos_token_id=2,
        rope_parameters=dict(
            rope_type="linear", rope_theta=500.0, factor=2.0
        ),
    ),
}
DTYPES = {"llama_tied": torch.bfloat16, "llama_untied": torch.float32}


def main():
  for seed, (name, sizes) in enumerate(MODELS.items()):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**SIZES, **sizes)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
      for key, parameter in model.named_parameters():
        if "norm" in key:  # Ones would hide a norm that is not applied.
          parameter.uniform_(0.5, 1.5)
        elif "embed" in key:
          parameter.normal_(0.0, 1.0)
        else:  # Large enough that attention is not uniform.
          parameter.normal_(0.0, 0.3)
    model.to(DTYPES[name]).save_pretrained(HERE / name)
    # Read back: casting a model also rounds its rotary frequencies.
    model = transformers.LlamaForCausalLM.from_pretrained(
        HERE / name, dtype=torch.float32
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
