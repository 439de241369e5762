"""Responses token by token: chosen, judged, and put into HTML."""

import dataclasses

import made_run
import numpy as np
import pytest
import tiny_run

from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.lab import rollouts
from jaxrl_llm.lab import sample_text
from jaxrl_llm.lab import samples
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import recompute
from jaxrl_llm.training import scoring
from jaxrl_llm.training import trainer as trainer_lib

# Wide enough that both sides of 1 have tokens within and beyond the bounds.
PPO = {"name": "ppo", "advantage": "group_std", "clip_low": 0.2,
       "clip_high": 0.3, "correction": "none"}
BYTES = tokenizer_lib.load("bytes")


def folders(folder):
  return rollouts.folders(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  return made_run.whole(tmp_path_factory.mktemp("samples") / "run")


def trainer(spec: dict, **changes) -> trainer_lib.Trainer:
  found = trainer_lib.build(
      tiny_run.POLICY, algorithms.build(spec), tiny_run.SETTINGS, mesh=None,
      seed=0, reference_params=tiny_run.params(),
  )
  return dataclasses.replace(found, **changes)


def chosen(count: int = 5) -> samples.Chosen:
  """Records whose proximal log-probs are those of other weights."""
  made = tiny_run.make_rollouts(groups=2)[:count]
  other = tiny_run.params(seed=1)
  shape = scoring.Shape(2, 32)
  proximal = recompute.logprobs(
      tiny_run.POLICY, other, made, shape, tiny_run.mesh()
  )
  advantages = [np.float32((-1) ** n) for n in range(count)]
  terms = {"proximal_logprobs": proximal, "advantages": advantages}
  return samples.Chosen(0, made, terms)


def test_both_ends_of_the_advantages_are_chosen(whole):
  """Of ±0.5 in turn; ids break ties: 1001, 1003, 1005, 1000, 1002, 1004."""
  found = samples.choose(whole, folders(whole), 3)
  assert found.round == 1
  ids = [rollout.record_id for rollout in found.rollouts]
  # Places 0, 2.5 (rounds to 2) and 5.
  assert ids == [1001, 1005, 1004]
  assert [float(a) for a in found.terms["advantages"]] == [0.5, 0.5, -0.5]
  assert len(samples.choose(whole, folders(whole), 99).rollouts) == 6


def test_without_training_the_newest_round_is_chosen_by_reward(tmp_path):
  for number in range(2):
    made_run.write_shards(
        tmp_path / f"rollouts/round_0000{number}/host_000",
        [made_run.rollout(n, number, 4) for n in range(4)],
    )
  found = samples.choose(tmp_path, folders(tmp_path), 2)
  assert found.round == 1 and not found.terms
  assert [rollout.reward for rollout in found.rollouts] == [1.0, 0.0]


def test_nothing_to_choose_from_is_said(whole, tmp_path):
  with pytest.raises(ValueError, match="no finished shard folder"):
    samples.choose(tmp_path, [], 3)
  with pytest.raises(ValueError, match="3 of 3 records"):
    samples.choose(whole, folders(whole)[:1], 3)


def test_judged_tokens_are_those_of_a_numpy_oracle():
  given = chosen()
  live = recompute.logprobs(
      tiny_run.POLICY, tiny_run.params(), given.rollouts,
      scoring.Shape(2, 32), tiny_run.mesh(),
  )
  found = samples.judge(trainer(PPO), tiny_run.params(), given, 3)
  cuts = []
  for n, sample in enumerate(found):
    mask = given.rollouts[n].response_mask
    gaps = live[n] - given.terms["proximal_logprobs"][n]
    np.testing.assert_allclose(
        sample.log_ratios, np.where(mask, gaps, np.nan), atol=1e-5
    )
    np.testing.assert_allclose(
        sample.objective_log_ratios, sample.log_ratios, atol=1e-5
    )
    ratio, advantage = np.exp(gaps), given.terms["advantages"][n]
    beyond = ratio > 1.3 if advantage > 0 else ratio < 0.8
    np.testing.assert_array_equal(sample.cut_mask, beyond & mask)
    cuts += sample.cut_mask[mask].tolist()
  assert 0 < np.mean(cuts) < 1


def test_bounds_of_a_bandit_apply():
  wide = {"clip_low": 0.999, "clip_high": 1e9}
  found = samples.judge(
      trainer(PPO, controls=wide), tiny_run.params(), chosen(), 3
  )
  assert not any(sample.cut_mask.any() for sample in found)


def test_tokens_that_curation_took_out_are_cut():
  given = chosen()
  weights = [np.ones(r.response_tokens.size) for r in given.rollouts]
  weights[0][:] = 0
  given = dataclasses.replace(given, terms=given.terms | {"weights": weights})
  sample = samples.judge(trainer(PPO), tiny_run.params(), given, 3)[0]
  np.testing.assert_array_equal(
      sample.cut_mask, given.rollouts[0].response_mask
  )


@pytest.mark.parametrize(
    "name", ["ctpo", "gspo", "cispo", "acpo_adaptive", "dpo", "sapo"]
)
def test_other_objectives_are_judged(name):
  given = chosen()
  proximal = given.terms["proximal_logprobs"]
  given = dataclasses.replace(
      given, terms=given.terms | {"reference_logprobs": proximal}
  )
  made = trainer({"name": name})
  for sample in samples.judge(made, tiny_run.params(), given, 3):
    mask = sample.rollout.response_mask
    assert np.isfinite(sample.log_ratios[mask]).all()
    assert (sample.cut_mask is None) == (name in ("acpo_adaptive", "dpo"))


def test_term_that_was_not_prepared_is_named():
  given = chosen()
  terms = {"advantages": given.terms["advantages"]}
  with pytest.raises(ValueError, match="no proximal_logprobs"):
    samples.judge(
        trainer(PPO), tiny_run.params(),
        dataclasses.replace(given, terms=terms), 3,
    )


def test_recorded_ratio_is_proximal_over_behavior(whole):
  """Prepared as −0.9 where −1 was recorded."""
  for sample in samples.recorded(samples.choose(whole, folders(whole), 3)):
    np.testing.assert_allclose(sample.log_ratios, 0.1, atol=1e-6)
    assert sample.cut_mask is None


def test_pieces_join_to_the_text_and_name_what_is_no_character():
  """é is C3 A9; the bytes alone are no text, a control byte cannot be seen."""
  ids = BYTES.encode("a b\n")
  assert sample_text.pieces(BYTES, [65], ids) == ["a", " ", "b", "\n"]
  odd = sample_text.pieces(BYTES, [65], [0xC3, 0xA9, 0x00, BYTES.eos_id])
  assert odd == ["Ã", "©", "Ā", "<|eos|>"]
  assert sample_text.pieces(None, [65], [7, 8]) == ["⟨7⟩", "⟨8⟩"]
  assert sample_text.pieces(BYTES, [], [65]) == ["A"]


def sample_of(log_ratios, cut, text="ab<&") -> samples.Sample:
  rollout = made_run.rollout(0, 0, len(text))
  tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
  return samples.Sample(
      rollout=dataclasses.replace(rollout, response_tokens=tokens),
      advantages=np.full(len(text), -2.0),
      log_ratios=np.array(log_ratios),
      objective_log_ratios=np.array(log_ratios),
      cut_mask=np.array(cut),
  )


def test_token_has_side_strength_and_cut_in_its_classes():
  """Quarters of 0.5 nats: 0.05 is the first, −0.3 the third, NaN has none."""
  sample = sample_of([0.05, -0.3, np.nan, 9.0], [False, True, False, False])
  shown = sample_text.render([sample], BYTES, "live / behavior")
  assert '<span class="t u1"' in shown
  assert '<span class="t d3 cut"' in shown
  assert '<span class="t off"' in shown and '<span class="t u4"' in shown
  # exp(−0.3) = 0.741.
  assert "live / behavior 0.741 (-0.3 nats)" in shown
  assert "A -2" in shown and "1 cut" in shown


def test_texts_are_escaped_everywhere():
  sample = sample_of([0.0] * 4, [False] * 4, '<">&')
  shown = sample_text.render([sample], BYTES, "live / behavior")
  assert "<script" not in shown and "&lt;script&gt;" in shown
  for letter in ("&lt;", "&quot;", "&gt;", "&amp;"):
    assert f">{letter}</span>" in shown
