"""A tiny training run on hand-made records, for tests and for killing.

  python tiny_run.py FOLDER WORKDIR [MOMENT COUNT]

trains (or resumes) the run of `train` and prints a digest of everything that
it ends with. With a MOMENT ("update", "publish" or "save") the process ends
by SIGKILL at its COUNT-th time; with "terminate" it gets a SIGTERM at the
COUNT-th update.
"""

import dataclasses
import hashlib
import os
import pathlib
import signal
import sys

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import atomic
from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import packing
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import config as config_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import loop
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import preemption
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import state as state_lib

LINEAGE = "tiny"
VOCABULARY = 32
MODEL = config_lib.ModelConfig(
    vocab_size=VOCABULARY,
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp_width=32,
)
POLICY = policy_lib.Policy(MODEL, "float32", "none")
SPEC = algorithms.build({"name": "ctpo", "correction": "none"})
SETTINGS = settings_lib.TrainSettings(
    epochs=2,
    groups_per_batch=4,
    groups_per_minibatch=2,
    rows_per_microbatch=2,
    tokens_per_row=32,
    learning_rate=3e-2,
    checkpoint_every=3,
)


_init = jax.jit(POLICY.init)


def params(seed: int = 0) -> types.PyTree:
  return _init(jax.random.key(seed))


def mesh(text: str = "data=1") -> jax.sharding.Mesh:
  return sharding_lib.make_mesh(text)


def make_rollouts(
    groups: int = 8, samples: int = 4, round: int = 0, seed: int = 0
) -> list[types.Rollout]:
  """Random responses of 3 to 10 tokens, some with a tool token."""
  draw = np.random.default_rng(seed)
  rollouts = []
  for number in range(groups * samples):
    prompt, sample = divmod(number, samples)
    length = int(draw.integers(3, 11))
    mask = np.ones(length, bool)
    mask[1] = draw.random() < 0.8
    rollouts.append(
        types.Rollout(
            record_id=fingerprints.of_record(LINEAGE, round, prompt, sample),
            prompt_id=prompt,
            group_id=fingerprints.of_group(LINEAGE, round, prompt),
            sample_index=sample,
            round=round,
            prompt_tokens=np.random.default_rng((seed, prompt)).integers(
                0, VOCABULARY, 2 + prompt % 3, np.int32
            ),
            response_tokens=draw.integers(0, VOCABULARY, length).astype(
                np.int32
            ),
            response_mask=mask,
            behavior_logprobs=np.zeros(length, np.float32),
            log_kept_mass=np.zeros(length, np.float32),
            policy_versions=np.zeros(length, np.int32),
            lineage=LINEAGE,
            window_start=0,
            topk_ids=np.zeros((length, 0), np.int32),
            topk_logprobs=np.zeros((length, 0), np.float32),
            finish_reason="stop",
            role="train",
            temperature=0.8,
            reward=float(draw.random() < 0.3 + 0.4 * (sample % 2)),
            reward_parts={},
            reference_answer="",
            prompt_text="",
            response_text="",
        )
    )
  return rollouts


@jax.jit
def _score(weights, batch):
  return POLICY.token_logprobs(
      weights,
      batch.tokens,
      batch.segment_ids,
      batch.parent_ids,
      batch.positions,
      batch.temperatures,
  ).logprobs


def behave(
    rollouts: list[types.Rollout], weights: types.PyTree, version: int = 0
) -> list[types.Rollout]:
  """Gives each record the log-probs of the policy with these weights."""
  rows = [[number] for number in range(len(rollouts))]
  batch = packing.assemble(rollouts, rows, tokens_per_row=16)
  logprobs = np.asarray(_score(weights, batch))
  result = []
  for rollout, row in zip(rollouts, logprobs):
    start = rollout.prompt_tokens.size
    length = rollout.response_tokens.size
    result.append(
        dataclasses.replace(
            rollout,
            behavior_logprobs=np.minimum(row[start : start + length], 0.0),
            policy_versions=np.full(length, version, np.int32),
        )
    )
  return result


def write(
    folder: pathlib.Path, rollouts: list[types.Rollout], **changes
) -> pathlib.Path:
  metadata = schema.FolderMetadata(
      **dict(
          lineage=LINEAGE,
          round=0,
          policy_version=0,
          weights_fingerprint="weights",
          tokenizer_fingerprint="tokenizer",
          prompts_fingerprint="prompts",
          sampling={},
          config={},
          code_version="0",
      )
      | changes
  )
  writer = shards.ShardWriter(folder, metadata, 1)
  writer.write(0, rollouts)
  writer.finish()
  return folder


def start(
    workdir: pathlib.Path,
    settings: settings_lib.TrainSettings = SETTINGS,
) -> state_lib.TrainState:
  """Returns the latest checkpoint's state, or a new one."""
  transform = optimizer.build(settings)
  path = checkpoints.latest(workdir / "checkpoints")
  if path is None:
    return state_lib.create(params(), transform, LINEAGE)
  return checkpoints.restore(path, POLICY.shapes, transform).state


def train(
    folder: pathlib.Path,
    workdir: pathlib.Path,
    *,
    spec=SPEC,
    settings: settings_lib.TrainSettings = SETTINGS,
    round: int = 0,
    **changes,
) -> state_lib.TrainState:
  """Runs or resumes one round."""
  given = dict(tokenizer_fingerprint="tokenizer", seed=5, round=round)
  return loop.train(
      POLICY,
      start(workdir, settings),
      spec,
      settings,
      [folder],
      workdir,
      **(given | changes),
  )


def digest(state: state_lib.TrainState) -> str:
  """Hashes parameters, optimizer and counters to the bit."""
  hashed = hashlib.sha256()
  tree = (state.params, state.opt_state, state.counters)
  for leaf in jax.tree.leaves(tree):
    hashed.update(np.asarray(leaf).tobytes())
  return hashed.hexdigest()


def die_after(function, count: int, number=signal.SIGKILL):
  """Returns the function, whose count-th call first sends a signal."""
  calls = [count]

  def wrapped(*args, **kwargs):
    calls[0] -= 1
    if not calls[0]:
      os.kill(os.getpid(), number)
    return function(*args, **kwargs)

  return wrapped


def main(
    folder: str, workdir: str, moment: str = "", count: str = "0"
) -> None:
  if moment == "update":
    loop._update = die_after(loop._update, int(count))
  if moment == "terminate":
    preemption.listen()
    loop._update = die_after(loop._update, int(count), signal.SIGTERM)
  if moment == "publish":
    atomic.publish = die_after(atomic.publish, int(count))
  if moment == "save":
    # Orbax gives a whole checkpoint its name by renaming.
    os.rename = die_after(os.rename, int(count))
  print("digest", digest(train(pathlib.Path(folder), pathlib.Path(workdir))))


if __name__ == "__main__":
  main(*sys.argv[1:])
