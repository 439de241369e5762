"""Each planted cause of a step-0 gap is named, and the parts add up."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing
from jaxrl_llm.training import agreement
from jaxrl_llm.training import gap
from jaxrl_llm.training import probe

MESH = tiny_run.mesh()
ROUNDED = dataclasses.replace(tiny_run.POLICY, compute_dtype="bfloat16")
KEPT = 4


@functools.cache
def weights(seed=0):
  """Random weights with logits of some size."""
  return jax.tree.map(lambda leaf: 3 * leaf, tiny_run.params(seed))


@pytest.fixture(scope="module")
def rollouts():
  """Records that `weights` drew at temperature 0.8."""
  return tiny_run.behave(tiny_run.make_rollouts(), weights())


def explain(records, packed_by=None, policy=tiny_run.POLICY):
  """Explains records; the trainer scores them with the weights given."""
  scored = tiny_run.behave(records, packed_by or weights())
  packed = [record.behavior_logprobs for record in scored]
  found = gap.explain(policy, packed_by or weights(), records, packed, MESH)
  check(found)
  return found


def check(found):
  assert found.parts.keys() == gap.CAUSES.keys()
  assert all(part >= 0 for part in found.parts.values())
  assert sum(found.parts.values()) == pytest.approx(found.whole)
  assert found.tokens >= 12
  numbers = found.numbers()
  assert numbers["step0/gap"] == found.whole
  for name, part in found.parts.items():
    assert numbers[f"step0/gap_{name}"] == part
  lines = found.lines()
  assert len(lines) == (6 if found.whole > agreement.FLOAT32_TOLERANCE else 0)
  assert all(len(line) < 100 for line in lines)


def named(found, cause, *words):
  """The cause holds nearly all of the gap, and says what was found."""
  assert found.cause == cause, found
  assert found.parts[cause] > 0.7 * found.whole, found
  assert found.whole > 0.01
  for word in words:
    assert word in found.hints[cause]


def test_records_that_agree_are_not_scored_again(rollouts, monkeypatch):
  monkeypatch.setattr(probe, "_scorer", lambda *unused: None)
  found = explain(rollouts)
  assert found.whole < 1e-4 and found.cause == "precision"


def test_a_wrong_temperature(rollouts):
  """Drawn at 0.8, the records say 1.1."""
  wrong = [dataclasses.replace(r, temperature=1.1) for r in rollouts]
  named(explain(wrong), "temperature", "0.8", "the records say 1.1")


def test_logprobs_before_the_temperature(rollouts):
  """Drawn at 0.8, with the log-probs of temperature 1."""
  raw = [dataclasses.replace(r, temperature=1.0) for r in rollouts]
  raw = [
      dataclasses.replace(record, temperature=0.8)
      for record in tiny_run.behave(raw, weights())
  ]
  named(explain(raw), "temperature", "temperature 1 fits")


@jax.jit
def _most_likely(params, batch):
  scored = tiny_run.POLICY.token_logprobs(
      params,
      batch.tokens,
      batch.segment_ids,
      batch.parent_ids,
      batch.positions,
      batch.temperatures,
      topk=KEPT,
  )
  return scored.topk_ids, scored.topk_logprobs


def drawn_from_the_top(records):
  """Records whose tokens, and log-probs, are of the KEPT most likely ids."""
  draw = np.random.default_rng(0)
  rows = [[number] for number in range(len(records))]
  tokens = [record.response_tokens.copy() for record in records]
  logprobs = [np.zeros(len(t), np.float32) for t in tokens]
  masses = [np.zeros(len(t), np.float32) for t in tokens]
  for t in range(max(map(len, tokens))):
    records = [
        dataclasses.replace(record, response_tokens=own)
        for record, own in zip(records, tokens)
    ]
    batch = packing.assemble(records, rows, tokens_per_row=16)
    ids, logs = jax.device_get(_most_likely(weights(), batch))
    for number, record in enumerate(records):
      if t >= len(tokens[number]):
        continue
      at = record.prompt_tokens.size + t
      mass = np.logaddexp.reduce(logs[number, at])
      chances = np.exp(logs[number, at].astype(float))
      pick = draw.choice(KEPT, p=chances / chances.sum())
      tokens[number][t] = ids[number, at, pick]
      logprobs[number][t] = logs[number, at, pick] - mass
      masses[number][t] = mass
  return [
      dataclasses.replace(
          record,
          response_tokens=own,
          behavior_logprobs=np.minimum(logs, 0.0),
          log_kept_mass=mass,
      )
      for record, own, logs, mass in zip(records, tokens, logprobs, masses)
  ]


def test_truncated_support_whose_mass_is_missing(rollouts):
  truncated = drawn_from_the_top(rollouts)
  assert explain(truncated).whole < 1e-4
  silent = [
      dataclasses.replace(r, log_kept_mass=np.zeros_like(r.log_kept_mass))
      for r in truncated
  ]
  named(explain(silent), "support", f"top_k={KEPT} fits")


def test_a_kept_mass_that_the_logprobs_hold_already(rollouts):
  twice = [
      dataclasses.replace(r, log_kept_mass=np.full_like(r.log_kept_mass, -0.5))
      for r in rollouts
  ]
  named(explain(twice), "support", "without the kept mass")


def test_other_weights(rollouts):
  older = [
      dataclasses.replace(
          r, policy_versions=np.full_like(r.policy_versions, 2)
      )
      for r in rollouts
  ]
  named(explain(older, packed_by=weights(1)), "weights", "drawn by version 2")


def test_a_step_between_two_updates_is_the_weights(rollouts):
  """A small change of all weights, well above rounding."""
  draw = np.random.default_rng(0)

  def noise(leaf):
    scale = 1 + 0.3 * draw.normal(size=leaf.shape)
    return np.asarray(leaf) * scale.astype(np.float32)

  moved = jax.tree.map(noise, weights())
  found = explain(rollouts, packed_by=moved)
  assert found.cause == "weights" and found.whole > 0.05


def test_rounding_to_bfloat16(rollouts):
  """The sampler was exact; trainer and records differ by rounding alone."""
  records = rollouts
  first = probe.choose(indices.Index.of(records))
  rows = probe.Probe.of(
      ROUNDED, weights(), records, [r.behavior_logprobs for r in records], MESH
  )
  scored = rows.rounded()
  packed = [r.behavior_logprobs for r in records]
  for number, row in zip(first, scored):
    size = records[number].response_tokens.size
    packed[number] = row[-size:]
  found = gap.explain(ROUNDED, weights(), records, packed, MESH)
  check(found)
  assert found.cause == "precision" and found.parts["weights"] == 0
  assert found.parts["precision"] > 0.7 * found.whole > 1e-3


def test_rows_that_shift_the_positions_of_responses(rollouts):
  """The trainer's rows are wrong: alone, each record fits."""
  scored = shifted(rollouts, weights())
  found = gap.explain(tiny_run.POLICY, weights(), rollouts, scored, MESH)
  check(found)
  named(found, "layout", "packed rows differ")


def test_a_sampler_that_shifted_the_positions_of_responses(rollouts):
  behavior = shifted(rollouts, weights())
  records = [
      dataclasses.replace(r, behavior_logprobs=np.minimum(row, 0.0))
      for r, row in zip(rollouts, behavior)
  ]
  named(explain(records), "layout", "response positions +1 fit")


def shifted(records, params):
  """Log-probs with the positions of each response one too far."""
  rows = [[number] for number in range(len(records))]
  batch = packing.assemble(records, rows, tokens_per_row=16)
  starts = np.array([[r.prompt_tokens.size] for r in records])
  later = np.arange(16)[None] >= starts
  positions = (batch.positions + later).astype(np.int32)
  batch = dataclasses.replace(batch, positions=positions)
  logprobs = np.asarray(tiny_run._score(params, batch))
  return [
      row[r.prompt_tokens.size :][: r.response_tokens.size]
      for r, row in zip(records, logprobs)
  ]


@pytest.mark.parametrize("step, side", [(1, "next"), (-1, "last")])
def test_logprobs_of_a_neighbour(rollouts, step, side):
  records = [
      dataclasses.replace(
          r, behavior_logprobs=np.roll(r.behavior_logprobs, -step)
      )
      for r in rollouts
  ]
  found = explain(records)
  assert found.cause == "layout", found
  assert f"those of the {side} token" in found.hints["layout"]


def test_few_records_of_one_length_are_chosen(rollouts):
  numbers = probe.choose(indices.Index.of(rollouts))
  chosen = [rollouts[number] for number in numbers]
  sizes = {r.prompt_tokens.size + r.response_tokens.size for r in chosen}
  assert len(sizes) == 1 and 1 <= len(chosen) <= 4
