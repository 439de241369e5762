"""The study of staleness: its problems and its demonstrations."""

import json

import numpy as np
import tiny_run

from experiments.staleness import config as config_lib
from experiments.staleness import study
from jaxrl_llm.lab import objectives
from jaxrl_llm.verbs import parts


def test_problems_are_trained_on_in_every_round(tmp_path):
  """32 questions of eight answers; all that are not held out make a round."""
  path = tmp_path / "problems/all.jsonl"
  study.write_problems(path)
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert len({line["question"] for line in lines}) == 32
  answers = {line["question"][0]: line["answer"] for line in lines}
  assert len(set(answers.values())) == 8
  assert all(line["answer"] == answers[line["question"][0]] for line in lines)
  config = config_lib.get_config()
  config.prompts.path = str(path)
  train, held_out = parts.prompts(config, parts.tokenizer(config))
  assert len(train) == config.generation.prompts_per_round
  assert len(held_out) == config.prompts.eval_count


def test_the_objectives_of_the_study():
  config = config_lib.get_config()
  found = objectives.parse(config.lab.objectives, config.lab.correction)
  anchors = {entry.label: entry.spec.anchor for entry in found}
  assert len(anchors) == 9 and anchors.pop("tis") == "proximal"
  assert set(anchors.values()) == {"behavior"}


def test_a_share_of_the_demonstrations_is_right():
  """Of 400, 160 ± 10 by the binomial; a wrong one is right by chance rarely."""
  draw = np.random.default_rng(0)
  rollout = tiny_run.dataclasses.replace(
      tiny_run.make_rollouts(1, 1)[0], reference_answer="1234"
  )
  shown = [study.demonstrate(rollout, draw) for _ in range(400)]
  right = sum(one.response_text == "1234" for one in shown)
  assert 120 < right < 200
  assert {one.response_tokens.size for one in shown} == {study.DIGITS + 1}
  assert {one.reward for one in shown} == {1.0}
