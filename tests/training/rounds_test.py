"""What a round refuses before it reads."""

import dataclasses
import functools

import numpy as np
import pytest
import tiny_run

from jaxrl_llm.curation import methods
from jaxrl_llm.data import index as indices
from jaxrl_llm.data import plan
from jaxrl_llm.losses import algorithms
from jaxrl_llm.training import metrics
from jaxrl_llm.training import prepare
from jaxrl_llm.training import rounds
from jaxrl_llm.training import scoring
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored
from jaxrl_llm.training import trainer

SILENT = algorithms.build({"name": "ctpo"})
WHOLE = dataclasses.replace(tiny_run.SETTINGS, groups_per_batch=0)
ROLLOUTS = tiny_run.make_rollouts()


def set_versions(version):
  """Gives each record's first token a version; the others stay at 0."""

  def first(rollout):
    versions = np.array(rollout.policy_versions)
    versions[0] = version
    return dataclasses.replace(rollout, policy_versions=versions)

  return [first(rollout) for rollout in ROLLOUTS]


def open_round(folder, spec=SILENT, settings=WHOLE, updates=0, **changes):
  given = dict(
      tokenizer_fingerprint="tokenizer",
      seed=0,
      position=state_lib.Position(
          round_updates=updates, batch_updates=updates
      ),
      lineage=tiny_run.LINEAGE,
      fingerprint=lambda: "own weights",
  )
  return rounds.open_round([folder], spec, settings, **(given | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny_run.write(tmp_path_factory.mktemp("data") / "f", ROLLOUTS)


def test_fresh_rollouts_need_no_correction(folder):
  work = open_round(folder)
  assert not work.stale_mask.any()


def test_a_limited_group_is_its_own_baseline_as_a_whole(folder):
  """Two of four are trained on; all four rewards enter the statistics."""
  whole, limited = open_round(folder), open_round(folder, group_limit=2)
  np.testing.assert_array_equal(
      limited.batches[0].members, whole.batches[0].members
  )
  groups = limited.index.group_ids[limited.selection.positions]
  assert set(np.unique(groups, return_counts=True)[1]) == {2}


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"updates": 1}, "32 of 32 records|drawn by other weights"),
        ({"lineage": "another"}, "drawn by other weights"),
        ({"settings": tiny_run.SETTINGS}, "rollout batches will be stale"),
    ],
)
def test_hidden_staleness_is_refused(folder, changes, reason):
  with pytest.raises(ValueError, match="^objective.correction: ") as error:
    open_round(folder, **changes)
  assert error.match(reason)
  # Any named word will do, and an objective anchored at behavior needs none.
  for keys in (
      {"name": "ctpo", "correction": "none"},
      {"name": "ctpo", "correction": "tis"},
      {"name": "ctpo", "correction": "bypass"},
      {"name": "cppo_prefix"},
  ):
    open_round(folder, spec=algorithms.build(keys), **changes)


def test_the_oldest_token_decides(tmp_path):
  """Tokens of versions 0 and 1 are stale to version 1."""
  mixed = tiny_run.write(tmp_path / "mixed", set_versions(1))
  with pytest.raises(ValueError, match="^objective.correction: "):
    open_round(mixed, updates=1)


def test_the_same_weights_in_another_lineage_are_fresh(tmp_path):
  rollouts = [
      dataclasses.replace(rollout, lineage="another") for rollout in ROLLOUTS
  ]
  folder = tiny_run.write(
      tmp_path / "f",
      rollouts,
      lineage="another",
      weights_fingerprint="own weights",
  )
  open_round(folder, updates=7)
  with pytest.raises(ValueError, match="^objective.correction: "):
    open_round(folder, updates=7, fingerprint=lambda: "other weights")


def test_versions_of_another_lineage_count_nothing(tmp_path, folder):
  """Unless the weights are the trainer's, at the same version."""
  spec = algorithms.build({"name": "decoupled_ppo", "proximal": "loglinear"})
  open_round(folder, spec=spec)
  open_round(folder, spec=spec, updates=3)
  rollouts = [
      dataclasses.replace(rollout, lineage="another") for rollout in ROLLOUTS
  ]
  other = tiny_run.write(
      tmp_path / "f",
      rollouts,
      lineage="another",
      weights_fingerprint="own weights",
  )
  open_round(other, spec=spec)
  for changes in ({"updates": 3}, {"fingerprint": lambda: "other weights"}):
    with pytest.raises(ValueError, match="^objective.proximal: .*recomputed"):
      open_round(other, spec=spec, **changes)


def test_a_round_resumed_in_its_middle_was_admitted_before(folder):
  middle = state_lib.Position(epoch=1, batch_updates=3)
  open_round(folder, position=middle, updates=3)


def test_a_group_of_one_is_refused(tmp_path):
  single = tiny_run.write(tmp_path / "f", ROLLOUTS[:5])
  with pytest.raises(ValueError, match="samples_per_prompt: 1 groups have"):
    open_round(single)
  open_round(
      single,
      spec=algorithms.build({"name": "ctpo", "advantage": "reward"}),
  )


def test_another_tokenizer_is_refused(folder):
  with pytest.raises(ValueError, match="written with tokenizer tokenizer"):
    open_round(folder, tokenizer_fingerprint="mine")


def test_a_reference_is_needed_where_the_objective_has_one():
  spec = algorithms.build({"name": "grpo", "kl_coefficient": 0.1})
  with pytest.raises(ValueError, match="^train.reference: "):
    trainer.build(
        tiny_run.POLICY,
        spec,
        WHOLE,
        mesh=None,
        seed=0,
        reference_params=None,
    )


def test_rows_come_back_to_their_records():
  """Packed rows are taken apart: every response token to its own place.

  Records 0 and 2 answer the same prompt, that stands once before both.
  """
  rows = [[2, 0], [1]]
  values = np.zeros((3, 40), np.float32)
  want = {}
  for row, members in enumerate(rows):
    start = ROLLOUTS[members[0]].prompt_tokens.size - 1
    for member in members:
      rollout = ROLLOUTS[member]
      start += 1
      size = rollout.response_tokens.size
      want[member] = np.arange(size) + 100 * member
      values[row, start : start + size] = want[member]
      start += size
  index = indices.Index.of(ROLLOUTS[:3])
  found = scoring.responses(values, index, rows)
  for member in range(3):
    np.testing.assert_array_equal(found[member], want[member])


def test_weights_of_prompts_multiply_every_term(tmp_path):
  """All at ½: half the loss and gradient; of one prompt: its tokens alone."""
  made = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  spec = algorithms.build({
      "name": "grpo", "correction": "none", "entropy_coefficient": 0.1
  })
  found = {}
  for name, weights in {
      "none": {}, "half": {str(k): 0.5 for k in range(8)}, "one": {"3": 0.25}
  }.items():
    folder = tiny_run.write(
        tmp_path / name, made, config={"prompt_weights": weights}
    )
    workdir = tmp_path / f"run_{name}"
    tiny_run.train(folder, workdir, spec=spec, settings=WHOLE)
    records = metrics.read(workdir / "metrics.jsonl")
    first = next(r for r in records if r["kind"] == "update")
    terms = stored.load(prepare.path_of(workdir, state_lib.Position())).terms
    found[name] = first, terms.get("weights")
  plain, half = found["none"][0], found["half"][0]
  assert found["none"][1] is None and set(found["half"][1]) == {0.5}
  assert half["grad_norm"] == pytest.approx(plain["grad_norm"] / 2, rel=1e-4)
  assert half["loss/entropy"] == pytest.approx(plain["loss/entropy"] / 2)
  tokens = sum(r.response_tokens.size for r in made if r.prompt_id == 3)
  assert np.sum(found["one"][1] == 0.25) == tokens
  assert set(found["one"][1]) == {0.25, 1.0}


def test_weights_of_prompts_are_those_of_their_own_folder(tmp_path):
  """Two rounds pose a prompt, and each has its say of it, or none."""
  folders = [
      tiny_run.write(
          tmp_path / str(number), tiny_run.make_rollouts(round=number),
          round=number, config={"prompt_weights": weights},
      )
      for number, weights in enumerate(({"3": 0.25}, {"3": 2.0}, {}))
  ]
  work = rounds.open_round(
      folders, SILENT, WHOLE, tokenizer_fingerprint="tokenizer", seed=0,
      position=state_lib.Position(), lineage=tiny_run.LINEAGE,
      fingerprint=lambda: "own weights",
  )
  of_three = work.weights[work.index.prompt_ids == 3].reshape(3, -1)
  assert of_three.T.tolist() == [[0.25, 2.0, 1.0]] * 4
  assert set(work.weights[work.index.prompt_ids != 3]) == {1.0}


@pytest.mark.parametrize(
    "words, curation, message",
    [
        ({"trust_region": "adaptive_clip"}, "none", "takes statistics over"),
        ({}, "ps_ppo", "the curation divides by its own survivors"),
    ],
    ids=["statistics", "curation"],
)
def test_weighed_shards_are_refused_where_a_term_would_miss_them(
    tmp_path, words, curation, message
):
  spec = algorithms.build({"name": "ppo", "correction": "none"} | words)
  made = tiny_run.behave(tiny_run.make_rollouts(), tiny_run.params())
  step = methods.build({"name": curation})
  for name, weight in (("even", 1.0), ("weighed", 0.5)):
    folder = tiny_run.write(
        tmp_path / name, made, config={"prompt_weights": {"3": weight}}
    )
    train = functools.partial(
        tiny_run.train, folder, tmp_path / f"run_{name}", spec=spec,
        settings=WHOLE, curation=step,
    )
    if weight == 1.0:
      train()
      continue
    with pytest.raises(ValueError, match=message):
      train()


def test_the_tally_says_what_teaches_and_why_the_rest_does_not(tmp_path):
  """8 groups of 4. Rewards differ in group 0 alone, one of whose records is
  too long; a greedy response is no lesson and is not counted."""
  records = [
      dataclasses.replace(
          record, reward=float(record.sample_index % 2)
          if record.prompt_id == 0 else 1.0,
      )
      for record in ROLLOUTS
  ]
  sizes = [r.prompt_tokens.size + r.response_tokens.size for r in records]
  first = sorted(sizes[:4])
  assert first[-2] < first[-1] == 12
  long = sum(size > 11 for size in sizes)
  greedy = dataclasses.replace(
      records[0], record_id=3, role="baseline", sample_index=4
  )
  folder = tiny_run.write(tmp_path / "f", [*records, greedy])
  settings = dataclasses.replace(WHOLE, tokens_per_row=11)
  tally = rounds.tally(open_round(folder, settings=settings))
  assert tally == (
      f"3 of 32 records teach, of 1 of 8 groups; dropped: {long} longer than"
      f" train.tokens_per_row (raise it to keep them), {29 - long} of groups"
      " with equal rewards."
  )


def test_the_tally_of_a_round_that_is_all_trained_on(folder):
  settings = dataclasses.replace(WHOLE, keep_uniform_groups=True)
  tally = rounds.tally(open_round(folder, settings=settings))
  assert tally == "32 of 32 records teach, of 8 of 8 groups."


def test_every_reason_to_drop_has_words():
  index = indices.Index.of(ROLLOUTS)
  drops = plan.select(
      index, tokens_per_row=32, group_limit=2,
      ignored_mask=np.zeros(len(index), bool),
  ).drops
  assert drops.keys() - {"baseline"} == rounds.REASONS.keys()
