"""Rows and device arrays: every token is where its record says."""

import dataclasses
import itertools

import hypothesis as hp
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from jaxrl_llm import types
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import packing


def _assemble(rollouts, rows, **arguments):
  values = dict(tokens_per_row=24, rows_per_microbatch=2)
  return packing.assemble(rollouts, rows, **{**values, **arguments})


@hp.settings(deadline=None, max_examples=50)
@hp.given(
    prompt_lengths=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    sequences=st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 12)), max_size=40
    ),
)
def test_packing_loses_nothing_and_fits(prompt_lengths, sequences):
  prompts = [prompt % len(prompt_lengths) for prompt, _ in sequences]
  responses = [response for _, response in sequences]
  lengths = [prompt_lengths[p] + r for p, r in zip(prompts, responses)]
  rows = packing.pack(lengths, responses, prompts, 20)
  assert sorted(sum(rows, [])) == list(range(len(lengths)))
  for row in rows:
    # Each prompt less its last token once, and that token per response.
    runs = [p for p, _ in itertools.groupby(prompts[n] for n in row)]
    assert len(runs) == len(set(runs))
    heads = sum(max(0, prompt_lengths[prompt] - 1) for prompt in runs)
    tails = sum(responses[n] + (prompt_lengths[prompts[n]] > 0) for n in row)
    assert 0 < heads + tails <= 20
  again = map(np.array, (lengths, responses, prompts))
  assert rows == packing.pack(*again, 20)


def test_first_fit_decreasing_by_hand():
  """Decreasing 7 6 4 4 3 2 into 10: [7 3], [6 4], [4 2]; ties by index."""
  responses = [3, 6, 1, 3, 5, 2]
  rows = packing.pack([4, 7, 2, 4, 6, 3], responses, range(6), 10)
  assert rows == [[1, 5], [4, 0], [3, 2]]
  with pytest.raises(ValueError, match="sequence 1 has 11 tokens, a row hol"):
    packing.pack([4, 11], [2, 2], [0, 1], 10)


def test_responses_to_one_prompt_share_it_by_hand():
  """Prompts of 5 tokens: four responses of 2 fill 4 + 4·3 of 16, not 28.

  The fifth goes to the next row, that is opened by its own prompt.
  """
  rows = packing.pack([7] * 6, [2] * 6, [3, 3, 9, 3, 3, 3], 16)
  assert rows == [[0, 1, 3, 4], [5, 2]]


def test_records_that_were_not_read_leave_their_places_empty(rollout):
  """What an index knows of them is enough for the rest to stay in place."""
  rollouts = [rollout(number, group_id=9 - number // 2) for number in range(4)]
  rows = [[3], [0, 1], [2]]
  whole = _assemble(rollouts, rows, rows_per_microbatch=3)
  part = _assemble(
      [None, None, *rollouts[2:]], rows, rows_per_microbatch=3,
      index=indices.Index.of(rollouts),
  )
  empty = _assemble(rollouts, [[3], [], [2]], rows_per_microbatch=3)
  trees = map(jax.tree.leaves, (part, whole, empty))
  for found, full, blank in zip(*trees, strict=True):
    np.testing.assert_array_equal(found[[0, 2]], full[[0, 2]])
    np.testing.assert_array_equal(found[1], blank[1])


@pytest.mark.parametrize(("rows", "expected"), [(8, 8), (7, 8), (9, 16)])
def test_rows_fill_whole_microbatches(rollout, rows, expected):
  """8 rows need no filling at 8 a micro-batch; 7 need one."""
  rollouts = [rollout(number) for number in range(rows)]
  batch = _assemble(
      rollouts, [[index] for index in range(rows)], rows_per_microbatch=8
  )
  assert batch.tokens.shape == (expected, 24)
  assert not batch.segment_ids[rows:].any()
  assert not batch.terms.mask[rows:].any()
  assert (batch.temperatures[rows:] == 1).all()


def test_every_token_is_where_its_record_says(rollout):
  """Per-token and per-row fields of packed rows, by hand."""
  rollouts = [rollout(number, group_id=9 - number // 2) for number in range(4)]
  rollouts[1] = dataclasses.replace(
      rollouts[1],
      response_mask=np.array([True, False, True, True]),
      window_start=1,
      policy_versions=np.array([1, 2, 3, 4], np.int32),
      temperature=0.5,
      reward=1.0,
  )
  batch = _assemble(rollouts, [[3], [0, 1]], rows_per_microbatch=3)
  terms = batch.terms
  # Row 1: 3 tokens of the prompt that the records share, its last and the 3 of
  # record 0, its last and the 4 of record 1, then 12 of padding.
  first, second = rollouts[:2]
  tokens = np.concatenate([
      first.prompt_tokens,
      first.response_tokens,
      second.prompt_tokens[-1:],
      second.response_tokens,
      np.zeros(12),
  ])
  np.testing.assert_array_equal(batch.tokens[1], tokens)
  sizes = [3, 4, 5, 12]

  def spread(*values):
    return np.repeat(values, sizes)

  np.testing.assert_array_equal(batch.segment_ids[1], spread(1, 2, 3, 0))
  np.testing.assert_array_equal(batch.parent_ids[1], spread(1, 1, 1, 0))
  np.testing.assert_array_equal(terms.sequence_ids[1], spread(-1, 0, 1, -1))
  np.testing.assert_array_equal(terms.group_ids[1], spread(-1, 1, 1, -1))
  assert set(terms.group_ids[0]) == {0, -1}
  low = [record.record_id & 0xFFFFFFFF for record in (first, second)]
  np.testing.assert_array_equal(terms.record_ids[1], spread(0, *low, 0))
  np.testing.assert_array_equal(
      batch.positions[1], [*range(7), *range(3, 8), *[0] * 12]
  )
  np.testing.assert_array_equal(
      batch.temperatures[1], spread(1, 0.7, 0.5, 1).astype(np.float32)
  )
  np.testing.assert_array_equal(terms.rewards[1], spread(0, 0, 1, 0))
  # Tool tokens and tokens of earlier windows are context; no first token of a
  # segment is trained on.
  mask = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1] + [0] * 12
  np.testing.assert_array_equal(terms.mask[1], np.array(mask, bool))
  np.testing.assert_array_equal(terms.response_positions[1, 8:12], range(4))
  np.testing.assert_array_equal(terms.versions[1, 8:12], [1, 2, 3, 4])
  assert terms.record_ids.dtype == np.uint32
  assert terms.mask.dtype == np.bool_


def test_behavior_is_the_full_vocabulary_distribution(rollout):
  """Recorded log-prob plus log of the kept mass, top K alike."""
  record = rollout(2)
  terms = _assemble([record], [[0]]).terms
  size = record.response_tokens.size
  np.testing.assert_array_equal(
      terms.behavior_logprobs[0, 4 : 4 + size],
      record.behavior_logprobs + record.log_kept_mass,
  )
  np.testing.assert_array_equal(
      terms.topk_anchor_logprobs[0, 4 : 4 + size],
      record.topk_logprobs + record.log_kept_mass[:, np.newaxis],
  )
  np.testing.assert_array_equal(
      terms.topk_ids[0, 4 : 4 + size], record.topk_ids
  )
  assert not terms.behavior_logprobs[0, :4].any()
  bare = _assemble([rollout(2, topk=0)], [[0]]).terms
  assert bare.topk_ids is None and bare.topk_anchor_logprobs is None


def test_end_and_padding_tokens_are_told_apart_by_the_mask(rollout):
  """Padding is id 0 here as the last token is; only masks decide."""
  tokens = np.array([5, 0, 0], np.int32)
  terms = _assemble([rollout(0, response_tokens=tokens)], [[0]]).terms
  assert terms.mask[0].sum() == 3 and terms.mask[0, 4:7].all()


def test_prepared_terms_by_record(rollout):
  rollouts = [rollout(0), rollout(1)]
  prepared = {
      "advantages": [0.5, -0.5],
      "proximal_logprobs": [-np.arange(3.0), -np.arange(4.0)],
      "topk_anchor_logprobs": [np.full((3, 5), -1.0), np.full((4, 5), -2.0)],
      "topk_ids": [np.full((3, 5), 3), np.full((4, 5), 4)],
  }
  batch = _assemble(
      [rollout(0, topk=0), rollout(1, topk=0)], [[0, 1]], prepared=prepared
  )
  terms = batch.terms
  advantages = [0] * 4 + [0.5] * 3 + [0] + [-0.5] * 4 + [0] * 12
  np.testing.assert_array_equal(terms.advantages[0], advantages)
  proximal = terms.proximal_logprobs[0, 8:12]
  np.testing.assert_array_equal(proximal, -np.arange(4))
  assert terms.topk_ids.shape == (2, 24, 5) and terms.topk_ids[0, 9, 0] == 4
  assert terms.topk_ids.dtype == np.int32
  assert terms.weights[0].sum() == 7 and terms.logprobs is None
  assert terms.reference_logprobs is None
  with pytest.raises(ValueError, match="'advantage'; .* is 'advantages'"):
    _assemble(rollouts, [[0, 1]], prepared={"advantage": [1, 2]})
  with pytest.raises(ValueError, match="expected 2 entries, one per record"):
    _assemble(rollouts, [[0, 1]], prepared={"advantages": [1]})
  with pytest.raises(ValueError, match="proximal_logprobs: expected 3 entries"):
    wrong = [np.zeros(4), np.zeros(4)]
    _assemble(rollouts, [[0, 1]], prepared={"proximal_logprobs": wrong})


def _by_token(batch: types.Batch):
  """All terms of every response token, by record and position."""
  terms = batch.terms
  found = {}
  for row, column in zip(*np.nonzero(terms.mask)):
    key = (terms.record_ids[row, column], terms.response_positions[row, column])
    found[key] = (
        batch.tokens[row, column],
        batch.positions[row, column],
        batch.temperatures[row, column],
        terms.versions[row, column],
        terms.behavior_logprobs[row, column],
        terms.advantages[row, column],
        terms.proximal_logprobs[row, column],
        terms.rewards[row, column],
    )
  return found


def test_layout_changes_no_tokens_terms(rollout):
  """Packed, one a row, shuffled: each token keeps its own terms."""
  rollouts = [rollout(number, reward=number / 8) for number in range(12)]
  draw = np.random.default_rng(0)
  prepared = {
      "advantages": [float(number) for number in range(12)],
      "proximal_logprobs": [
          draw.random(r.response_tokens.size) for r in rollouts
      ],
  }
  rows = packing.pack_rollouts(rollouts, 24)
  assert len(rows) < 12
  packed = _by_token(_assemble(rollouts, rows, prepared=prepared))
  single = [[index] for index in range(12)]
  assert packed == _by_token(_assemble(rollouts, single, prepared=prepared))
  order = draw.permutation(12)
  shuffled = [rollouts[index] for index in order]
  moved = {
      name: [values[index] for index in order]
      for name, values in prepared.items()
  }
  rows = packing.pack_rollouts(shuffled, 24)
  assert packed == _by_token(_assemble(shuffled, rows, prepared=moved))
  assert len(packed) == sum(r.response_tokens.size for r in rollouts)
