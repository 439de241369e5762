"""Named sizes of published models, as their config.json files state them."""

from jaxrl_llm.models import config as config_lib

_LLAMA3_ROPE = config_lib.RopeScaling(
    kind="llama3",
    factor=8.0,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
    original_context_length=8192,
)


def _llama3(width, layers, heads, mlp_width):
  return config_lib.ModelConfig(
      vocab_size=128256,
      width=width,
      layers=layers,
      heads=heads,
      kv_heads=8,
      head_dim=128,
      mlp_width=mlp_width,
      rope_theta=500000.0,
      rope_scaling=_LLAMA3_ROPE,
      tied_embeddings=False,
      context_length=131072,
      bos_id=128000,
      eos_ids=(128001, 128008, 128009),
      pad_id=128004,
  )


def _qwen(family, width, layers, heads, kv_heads, mlp_width, **others):
  defaults = dict(
      vocab_size=151936,
      head_dim=128,
      rope_theta=1000000.0,
      norm_epsilon=1e-6,
      bos_id=None,
      eos_ids=(151645, 151643),
      pad_id=151643,
  )
  return config_lib.ModelConfig(
      family=family,
      width=width,
      layers=layers,
      heads=heads,
      kv_heads=kv_heads,
      mlp_width=mlp_width,
      **defaults | others,
  )


def _qwen2(*sizes, **others):
  return _qwen("qwen2", *sizes, **dict(context_length=32768) | others)


def _qwen3(*sizes, **others):
  return _qwen("qwen3", *sizes, **dict(context_length=40960) | others)


# `tiny` fits the built-in byte tokenizer: 256 bytes, then bos, eos, pad and
# room for a few more specials.
_PRESETS = {
    "tiny": config_lib.ModelConfig(
        vocab_size=272,
        width=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp_width=128,
        context_length=512,
        bos_id=256,
        eos_ids=(257,),
        pad_id=258,
    ),
    "smollm2-135m": config_lib.ModelConfig(
        vocab_size=49152,
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        mlp_width=1536,
        rope_theta=100000.0,
        context_length=8192,
        bos_id=1,
        eos_ids=(2,),
        pad_id=2,
    ),
    "llama3.1-8b": _llama3(4096, 32, 32, 14336),
    "llama3.1-70b": _llama3(8192, 80, 64, 28672),
    "qwen2.5-0.5b": _qwen2(896, 24, 14, 2, 4864, head_dim=64),
    "qwen2.5-1.5b": _qwen2(1536, 28, 12, 2, 8960),
    "qwen2.5-7b": _qwen2(
        3584, 28, 28, 4, 18944, vocab_size=152064, tied_embeddings=False
    ),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 8, 3072),
    "qwen3-4b": _qwen3(2560, 36, 32, 8, 9728),
    "qwen3-8b": _qwen3(4096, 36, 32, 8, 12288, tied_embeddings=False),
    "qwen3-14b": _qwen3(5120, 40, 40, 8, 17408, tied_embeddings=False),
    "qwen3-32b": _qwen3(5120, 64, 64, 8, 25600, tied_embeddings=False),
    "gemma3-1b": config_lib.ModelConfig(
        family="gemma3_text",
        vocab_size=262144,
        width=1152,
        layers=26,
        heads=4,
        kv_heads=1,
        head_dim=256,
        mlp_width=6912,
        rope_theta=1000000.0,
        local_rope_theta=10000.0,
        sliding_window=512,
        local_layers=config_lib.local_pattern(26, 6),
        score_divisor=256.0,
        norm_epsilon=1e-6,
        context_length=32768,
        bos_id=2,
        eos_ids=(1, 106),
        pad_id=0,
    ),
}


def preset(name: str) -> config_lib.ModelConfig:
  """Returns the named size; raises ValueError naming the known ones."""
  if name not in _PRESETS:
    raise ValueError(
        f"model.preset: expected one of {', '.join(sorted(_PRESETS))}, found "
        f"{name!r}; correct the name or give model.path."
    )
  return _PRESETS[name]
