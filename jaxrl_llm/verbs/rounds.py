"""Whose turn it is in a round: passes over the problems, in seeded order."""

from collections.abc import Sequence

from jaxrl_llm.data import fingerprints
from jaxrl_llm.data import prompts as prompts_lib


def turn_of(
    prompts: Sequence[prompts_lib.Prompt],
    round_number: int,
    prompts_per_round: int,
    seed: int,
) -> list[prompts_lib.Prompt]:
  """Orders all problems, those whose turn it is in a round first.

  A pass over all problems is cut into rounds; the few that are left over wait
  for the next pass, which has an order of its own.

  Args:
    prompts: all training problems.
    round_number: k, from 0.
    prompts_per_round: distinct problems of a round.
    seed: of the run.

  Returns:
    The problems of the round, then the rest of its pass, then the pass from
    its beginning.

  Raises:
    ValueError: there are fewer problems than a round poses.
  """
  if prompts_per_round > len(prompts):
    raise ValueError(
        f"generation.prompts_per_round: expected at most the {len(prompts)}"
        f" training problems, found {prompts_per_round}; lower it or raise"
        " prompts.count."
    )
  rounds_per_pass = len(prompts) // prompts_per_round
  pass_number, place = divmod(round_number, rounds_per_pass)
  order = sorted(
      prompts,
      key=lambda prompt: fingerprints.of_parts(
          "pass", seed, pass_number, prompt.prompt_id
      ),
  )
  start = place * prompts_per_round
  return order[start:] + order[:start]
