"""Grades the tiny model, which knows nothing, by the difficulty of prompts."""

import hashlib

from jaxrl_llm.rollout import rewards


def by_difficulty(response, prompt) -> rewards.Verdict:
  """Right with a share of responses that the prompt's id decides, 0 to 1."""
  hashed = hashlib.sha256(response.encode()).digest()[0] % 4
  return rewards.Verdict(float(hashed < prompt.prompt_id % 5), "", True)


def grader(config=None) -> rewards.Grader:
  del config
  return rewards.Grader(rewards.RewardSettings(), by_difficulty)
