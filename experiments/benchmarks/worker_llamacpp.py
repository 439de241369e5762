"""llama.cpp as a program of `turns`: greedy decoding of a batch.

Command: PEERS/llamacpp/bin/python experiments/benchmarks/worker_llamacpp.py
  MODEL.gguf [COPY.gguf]
Hardware: one or two CPU cores.
Expect: waits for jobs on its input; started by speed.py in the environment
  that peers.sh makes.

Weights stay as they are in MODEL.gguf (Q4_1), or, if COPY.gguf is named, in a
copy of them in bfloat16, made there once. All sequences lie in one
`llama_batch`, for the prompts as for every new token, each with a part of the
cache of its own.

peers.sh compiles llama-cpp-python 0.3.36 from its sources by g++ with
-march=native. A first line on the error output names the instruction sets in
use: AVX512, AVX512_VNNI and AVX512_BF16 where the machine has them. (The wheel
of ik-llama-cpp-python 0.1.5 holds no AVX512 instruction.)
"""

import ctypes
import os
import pathlib
import sys

import llama_cpp
import numpy as np
import turns


class Worker:
  """The model, and a context per shape."""

  def __init__(self, path: str, copy: str = ""):
    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    if copy and not pathlib.Path(copy).exists():
      _to_bfloat16(path, copy)
    self._model = llama_cpp.llama_model_load_from_file(
        (copy or path).encode(), llama_cpp.llama_model_default_params()
    )
    vocabulary = llama_cpp.llama_model_get_vocab(self._model)
    self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
    self._contexts = {}
    self._draw = np.random.default_rng(0)

  def _context(self, rows, prompt, new):
    """Returns a context and a batch with room for all prompts."""
    key = rows, prompt, new
    if key not in self._contexts:
      settings = llama_cpp.llama_context_default_params()
      settings.n_ctx = rows * (prompt + new)
      settings.n_batch = rows * prompt
      settings.n_seq_max = rows
      settings.n_threads = settings.n_threads_batch = os.cpu_count()
      self._contexts[key] = (
          llama_cpp.llama_init_from_model(self._model, settings),
          llama_cpp.llama_batch_init(rows * prompt, 0, 1),
      )
    return self._contexts[key]

  def _decode(self, context, batch, tokens, start):
    """Reads tokens [rows, length] from a position on; returns the likeliest."""
    rows, length = tokens.shape
    batch.n_tokens = tokens.size
    place = 0
    for row in range(rows):
      for offset in range(length):
        batch.token[place] = int(tokens[row, offset])
        batch.pos[place] = start + offset
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = row
        batch.logits[place] = offset == length - 1
        place += 1
    failed = llama_cpp.llama_decode(context, batch)
    if failed:
      raise RuntimeError(f"llama_decode: expected 0, found {failed}.")
    logits = np.ctypeslib.as_array(
        llama_cpp.llama_get_logits(context), (rows, self._vocabulary)
    )
    return np.argmax(logits, axis=1)[:, None]

  def generate(
      self, prompts: int, prompt: int, new: int, **unused
  ) -> dict[str, float]:
    """Draws a response of `new` tokens to each of the prompts."""
    del unused
    context, batch = self._context(prompts, prompt, new)
    asked = self._draw.integers(0, self._vocabulary, (prompts, prompt))

    def answer():
      memory = llama_cpp.llama_get_memory(context)
      llama_cpp.llama_memory_clear(memory, True)
      drawn = self._decode(context, batch, asked, 0)
      for position in range(prompt, prompt + new - 1):
        drawn = self._decode(context, batch, drawn, position)

    return {"seconds": turns.timed(answer), "tokens": prompts * new}


@llama_cpp.llama_log_callback
def _SILENT(level, text, data):
  """Drops what the library says but for errors."""
  del data
  if level == 4:
    sys.stderr.write(text.decode())


def _to_bfloat16(path: str, copy: str) -> None:
  """Writes the weights anew; one-dimensional ones stay float32."""
  settings = llama_cpp.llama_model_quantize_default_params()
  settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
  settings.allow_requantize = True
  failed = llama_cpp.llama_model_quantize(
      path.encode(), copy.encode(), ctypes.byref(settings)
  )
  if failed:
    raise RuntimeError(f"{path}: expected a copy in {copy}, found {failed}.")


if __name__ == "__main__":
  worker = Worker(*sys.argv[1:])
  print(llama_cpp.llama_print_system_info().decode(), file=sys.stderr)
  turns.serve({"generate": worker.generate})
