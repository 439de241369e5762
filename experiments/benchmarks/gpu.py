"""Measures training, decoding, attention and kernels on one accelerator.

Command: .venv/bin/python experiments/benchmarks/gpu.py [--budget=780]
  [--only=peaks,kernels,…] [--rows=8] [--smoke]
Hardware: one NVIDIA GPU with 80 GiB or more, jax[cuda13], within 15 minutes;
  --smoke: tiny shapes on any backend, 2 minutes.
Expect: one JSON line per measurement, at once. At T = 2,048, bfloat16:
  training at 45 % or more of the measured peak of matrix products, decoding
  256 responses at 50 % or more of the measured memory bandwidth (`holds` says
  whether; not with --smoke). Exit code 1 where a part failed, or a share is
  not reached; a part that failed or did not fit the budget has a line that
  says so, and the others go on.

The shapes are those of Qwen2.5-0.5B and 1.5B as Llama models: the biases of
Qwen's queries, keys and values are not in them, which changes next to nothing
of the cost. Weights are random. A training step is that of growth.py: forward,
backward and update of one micro-batch. Its operations are 6 per weight of a
product and token, and 6 · layers · heads · head_dim · T of causal attention;
what the head or a layer computes again is not counted. The bytes of a decoding
step are the rounded weights and the keys and values that are cached, each read
once.
"""

import argparse
from collections.abc import Callable, Iterator
import functools
import json
import statistics
import sys
import time
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import loss_kernels
import workload

from jaxrl_llm.models import policy as policy_lib

Record = dict[str, Any]
TRAINING_SHARE, DECODING_SHARE = 0.45, 0.5
QWEN = {
    "qwen2.5-0.5b": policy_lib.ModelConfig(
        vocab_size=151936, width=896, layers=24, heads=14, kv_heads=2,
        head_dim=64, mlp_width=4864, rope_theta=1e6, norm_epsilon=1e-6,
        context_length=32768,
    ),
    "qwen2.5-1.5b": policy_lib.ModelConfig(
        vocab_size=151936, width=1536, layers=28, heads=12, kv_heads=2,
        head_dim=128, mlp_width=8960, rope_theta=1e6, norm_epsilon=1e-6,
        context_length=32768,
    ),
}


class Bench:
  """What the parts share: sizes, and the peaks once they are measured."""

  def __init__(self, smoke: bool, rows: int):
    tiny = policy_lib.preset("tiny")
    self.smoke = smoke
    self.models = dict.fromkeys(QWEN, tiny) if smoke else QWEN
    self.rows = 2 if smoke else rows
    self.tokens = 64 if smoke else 2048
    self.repeats = 2 if smoke else 5
    self.decoding = (
        workload.Decoding(4, 64, 8) if smoke
        else workload.Decoding(256, 2048, 64)
    )
    self.kernels = (4, 128, 2, 2) if smoke else (64, 8192, 5, 3)

  @functools.cached_property
  def flops(self) -> float:
    """Operations per second of a bfloat16 product of square matrices."""
    size = 256 if self.smoke else 8192
    left, right = (
        jax.random.normal(key, (size, size), jnp.bfloat16)
        for key in jax.random.split(jax.random.key(0))
    )
    multiply = jax.jit(jnp.matmul)
    return 2 * size**3 / _in_a_row(lambda: multiply(left, right))

  @functools.cached_property
  def bandwidth(self) -> float:
    """Bytes per second, read and written, of adding 1 to a large array."""
    count = 2**20 if self.smoke else 2**31
    values = jnp.zeros(count, jnp.bfloat16)
    add = jax.jit(lambda x: x + 1)
    return 2 * values.nbytes / _in_a_row(lambda: add(values))

  def holds(self, share: float, wanted: float) -> Record:
    return {} if self.smoke else {"holds": share >= wanted}


def _in_a_row(function: Callable[[], jax.Array], calls: int = 10) -> float:
  """Seconds of a call, of several that are waited for together."""

  def run():
    for _ in range(calls):
      outputs = function()
    return outputs

  return workload.median_seconds(run, 5) / calls


def weights_of_products(config: policy_lib.ModelConfig) -> int:
  """Counts the weights that every token is multiplied with."""
  heads = 2 * config.heads + 2 * config.kv_heads
  layer = config.width * (heads * config.head_dim + 3 * config.mlp_width)
  return config.layers * layer + config.vocab_size * config.width


def peaks(bench: Bench) -> Iterator[Record]:
  """What the device can do."""
  yield {
      "device": jax.devices()[0].device_kind,
      "jax": jax.__version__,
      "product_tflops": round(bench.flops / 1e12, 3),
      "memory_gb_per_second": round(bench.bandwidth / 1e9, 1),
  }


def training(bench: Bench, name: str) -> Iterator[Record]:
  """Tokens per second, and the share of the peak."""
  config = bench.models[name]
  policy = policy_lib.Policy(config)
  state = workload.start_state(policy)
  one = workload.training(policy, state, bench.rows, bench.tokens)
  times = []
  for _ in range(bench.repeats + 1):
    state, passes, update = workload.train(one, state)
    times.append((passes, update))
  # The first compiles the update.
  passes, update = map(statistics.median, zip(*times[1:]))
  tokens = bench.rows * bench.tokens
  attention = config.layers * config.heads * config.head_dim * bench.tokens
  flops = 6 * tokens * (weights_of_products(config) + attention)
  share = flops / (passes + update) / bench.flops
  yield {
      "model": name,
      "rows": bench.rows,
      "row_tokens": bench.tokens,
      "tokens_per_second": round(tokens / (passes + update), 1),
      "share_of_peak": round(share, 4),
      "share_of_peak_without_update": round(flops / passes / bench.flops, 4),
      "temporary_gib": round(one.temporary_bytes / 2**30, 2),
      **bench.holds(share, TRAINING_SHARE),
  }


def decoding(bench: Bench, name: str) -> Iterator[Record]:
  """Seconds per step, and the share of the memory bandwidth."""
  config = bench.models[name]
  policy = policy_lib.Policy(config)
  params = jax.jit(
      lambda key: policy.compute_copy(policy.init(key))
  )(jax.random.key(0))
  shapes = bench.decoding
  per_token = 4 * config.layers * config.kv_heads * config.head_dim
  for cached in (shapes.capacity // 2, shapes.capacity):
    seconds = workload.decode_seconds(
        policy, params, shapes, cached, bench.repeats
    )
    # On average over the steps; the last ends with `cached` tokens.
    read = shapes.slots * (cached - shapes.steps / 2) * per_token
    read += 2 * weights_of_products(config)
    share = read / seconds / bench.bandwidth
    yield {
        "model": name,
        "slots": shapes.slots,
        "capacity": shapes.capacity,
        "cached": cached,
        "seconds_per_step": round(seconds, 6),
        "tokens_per_second": round(shapes.slots / seconds, 1),
        "share_of_bandwidth": round(share, 4),
        **bench.holds(share, DECODING_SHARE),
    }


def attention(bench: Bench, name: str) -> Iterator[Record]:
  """Forward and backward of one layer: this package's, XLA's and cuDNN's."""
  config = bench.models[name]
  exact = workload.attention_inputs(config, bench.rows, bench.tokens)
  half = tuple(x.astype(jnp.bfloat16) for x in exact)
  theirs = functools.partial(jax.nn.dot_product_attention, is_causal=True)
  wanted = None
  for what, function, inputs in (
      ("jaxrl_llm", workload.attend("bfloat16"), exact),
      ("xla", functools.partial(theirs, implementation="xla"), half),
      ("cudnn", functools.partial(theirs, implementation="cudnn"), half),
  ):
    record = {"model": name, "attention": what}
    try:
      run = workload.with_gradient(function)
      outputs = run(*inputs)[0].astype(jnp.float32)
      wanted = outputs if wanted is None else wanted
      seconds = _in_a_row(lambda: run(*inputs))
    except Exception as error:  # Whatever one of them raises, time the others.
      yield {**record, "failed": _first_line(error)}
      continue
    yield {
        **record,
        "shape": inputs[0].shape,
        "forward_backward_us": round(1e6 * seconds, 1),
        "largest_difference": float(jnp.max(jnp.abs(outputs - wanted))),
    }


def kernels(bench: Bench) -> Iterator[Record]:
  """The loss kernels in both forms; see loss_kernels.py."""
  yield from loss_kernels.measure(*bench.kernels)


def _first_line(error: Exception) -> str:
  return f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"


# Part, function, and seconds that it may take, compiling included.
PARTS = (
    ("peaks", peaks, 30),
    ("training 0.5b", lambda bench: training(bench, "qwen2.5-0.5b"), 90),
    ("decoding 0.5b", lambda bench: decoding(bench, "qwen2.5-0.5b"), 90),
    ("attention 0.5b", lambda bench: attention(bench, "qwen2.5-0.5b"), 40),
    ("kernels", kernels, 150),
    ("training 1.5b", lambda bench: training(bench, "qwen2.5-1.5b"), 110),
    ("decoding 1.5b", lambda bench: decoding(bench, "qwen2.5-1.5b"), 110),
    ("attention 1.5b", lambda bench: attention(bench, "qwen2.5-1.5b"), 40),
)


def run_part(
    part: str, function: Callable[[Bench], Iterator[Record]], bench: Bench
) -> bool:
  """Prints what a part measures, or why it failed; whether all is well."""
  began = time.perf_counter()
  well = True
  try:
    for record in function(bench):
      print(json.dumps({"part": part, **record}), flush=True)
      well &= record.get("holds", True)
  except Exception as error:  # The next part may still work.
    traceback.print_exc()
    print(json.dumps({"part": part, "failed": _first_line(error)}), flush=True)
    well = False
  took = round(time.perf_counter() - began, 1)
  print(json.dumps({"part": part, "took_seconds": took}), flush=True)
  return well


def main() -> int:
  """Runs the parts that fit the budget; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--budget", type=float, default=780)
  parser.add_argument("--only", default="")
  parser.add_argument("--rows", type=int, default=8)
  parser.add_argument("--smoke", action="store_true")
  asked = parser.parse_args()
  wanted = tuple(filter(None, asked.only.split(",")))
  parts = [
      part for part in PARTS if not wanted or part[0].startswith(wanted)
  ]
  if not parts:
    parser.error(
        f"--only: expected beginnings of {', '.join(x[0] for x in PARTS)}"
    )
  bench = Bench(asked.smoke, asked.rows)
  began = time.perf_counter()
  well = True
  for part, function, needed in parts:
    left = asked.budget - (time.perf_counter() - began)
    if left < needed:
      reason = f"needs {needed} s, {left:.0f} s are left"
      print(json.dumps({"part": part, "skipped": reason}), flush=True)
      continue
    well &= run_part(part, function, bench)
    jax.clear_caches()
  return 0 if well else 1


if __name__ == "__main__":
  sys.exit(main())
