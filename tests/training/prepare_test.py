"""What is prepared once per rollout batch: advantages over a greedy answer."""

import dataclasses
import random

import numpy as np
import pytest
import tiny_run

from jaxrl_llm.data import fingerprints
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import optimizer
from jaxrl_llm.training import prepare
from jaxrl_llm.training import rounds
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import trainer as trainer_lib

REMAX = algorithms.build({"name": "remax", "correction": "none"})
SETTINGS = dataclasses.replace(tiny_run.SETTINGS, groups_per_batch=0)
# Of prompts 0, 1 and 2; all answers to prompt 1 are right.
GREEDY = (0.0, 0.25, 1.0)


def make_rollouts():
  """Three groups of four, and a greedy answer to each prompt."""
  sampled = [
      dataclasses.replace(r, reward=1.0) if r.prompt_id == 1 else r
      for r in tiny_run.make_rollouts(groups=3)
  ]
  greedy = [
      dataclasses.replace(
          sampled[4 * prompt],
          record_id=fingerprints.of_record(tiny_run.LINEAGE, 0, prompt, -1),
          sample_index=-1,
          role="baseline",
          reward=reward,
      )
      for prompt, reward in enumerate(GREEDY)
  ]
  return sampled, greedy


def prepared(folder):
  work = rounds.open_round(
      [folder],
      REMAX,
      SETTINGS,
      tokenizer_fingerprint="tokenizer",
      seed=0,
      position=state_lib.Position(),
      lineage=tiny_run.LINEAGE,
      fingerprint=lambda: "weights",
  )
  trainer = trainer_lib.build(
      tiny_run.POLICY,
      REMAX,
      SETTINGS,
      mesh=None,
      seed=0,
      reference_params=None,
  )
  (batch,) = work.batches
  state = state_lib.create(
      tiny_run.params(), optimizer.build(SETTINGS), tiny_run.LINEAGE
  )
  return prepare.compute(trainer, state, work, batch)


def test_remax_subtracts_the_greedy_reward_of_the_same_prompt(tmp_path):
  """R − greedy R, also where a group's rewards are all equal."""
  sampled, greedy = make_rollouts()
  records = sampled + greedy
  random.Random(0).shuffle(records)
  found = prepared(tiny_run.write(tmp_path / "f", records))
  wanted = {r.record_id: r.reward - GREEDY[r.prompt_id] for r in sampled}
  assert set(found.record_ids.tolist()) == set(wanted)
  values = found.of([r.record_id for r in sampled])["advantages"]
  for rollout, value in zip(sampled, values, strict=True):
    np.testing.assert_allclose(value, wanted[rollout.record_id])


def test_a_group_without_a_greedy_answer_is_refused(tmp_path):
  sampled, greedy = make_rollouts()
  folder = tiny_run.write(tmp_path / "f", sampled + greedy[:2])
  with pytest.raises(ValueError, match="1 of 3 groups have none"):
    prepared(folder)
