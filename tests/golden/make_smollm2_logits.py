"""Writes smollm2_logits.npz: logits of SmolLM2 as transformers computes them.

Run once by hand, in an environment of its own:

  pip install torch==2.13.0 transformers==5.24.0 gguf accelerate
  python make_smollm2_logits.py SmolLM2-135M-Instruct.Q4_1.gguf

transformers reads and dequantizes the GGUF by its own code, in float32, so the
fixture finds a wrong permutation of q and k as well as a wrong block.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
POSITIONS = (0, 5, 20, 40, -1)
VOCABULARY_STRIDE = 64


def main(path):
  fixture = json.loads((HERE / "smollm2_tokenizer.json").read_text())
  tokens = np.asarray(fixture["conversations"][4]["ids"], np.int32)
  file = pathlib.Path(path)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      file.parent, gguf_file=file.name, dtype=torch.float32
  ).eval()
  with torch.no_grad():
    logits = model(torch.tensor(tokens[None]).long()).logits[0].numpy()
  positions = np.arange(len(tokens))[list(POSITIONS)]
  rows = logits[positions]
  np.savez_compressed(
      HERE / "smollm2_logits.npz",
      tokens=tokens,
      positions=positions.astype(np.int32),
      ids=np.arange(0, logits.shape[1], VOCABULARY_STRIDE, dtype=np.int32),
      logits=rows[:, ::VOCABULARY_STRIDE],
      log_normalizers=torch.logsumexp(torch.tensor(rows), -1).numpy(),
      argmax=rows.argmax(-1).astype(np.int32),
  )


if __name__ == "__main__":
  main(sys.argv[1])
