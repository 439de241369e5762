"""Whose turn it is in a round."""

from types import SimpleNamespace

import pytest

from jaxrl_llm.verbs import rounds

PROMPTS = [SimpleNamespace(prompt_id=number) for number in range(10)]


def ids(round_number: int, count: int = 3, seed: int = 0) -> list[int]:
  turn = rounds.turn_of(PROMPTS, round_number, count, seed)
  return [prompt.prompt_id for prompt in turn[:count]]


def test_rounds_of_a_pass_are_disjoint_and_a_pass_has_its_own_order():
  first = ids(0) + ids(1) + ids(2)
  second = ids(3) + ids(4) + ids(5)
  assert len(set(first)) == len(set(second)) == 9
  assert first != second


def test_a_round_depends_on_number_and_seed_alone():
  assert ids(7) == ids(7)
  assert ids(0, seed=1) != ids(0, seed=0)
  reversed_order = rounds.turn_of(PROMPTS[::-1], 0, 3, 0)
  assert [prompt.prompt_id for prompt in reversed_order[:3]] == ids(0)


def test_those_whose_turn_it_is_not_follow_and_nobody_is_left_out():
  turn = [prompt.prompt_id for prompt in rounds.turn_of(PROMPTS, 1, 3, 0)]
  assert sorted(turn) == list(range(10))
  assert turn[3:6] == ids(2) and turn[-3:] == ids(0)


def test_too_few_problems_are_refused():
  with pytest.raises(ValueError, match="prompts_per_round.*10"):
    ids(0, count=11)
