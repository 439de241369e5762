"""The critic of a run, made from the configuration."""

import functools

import ml_collections

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import settings


def build(
    config: ml_collections.ConfigDict, policy: policy_lib.Policy
) -> critic_lib.Critic | None:
  """Makes the critic; None for an objective without one.

  Args:
    config: the whole configuration.
    policy: that a critic without a model of its own reads.

  Raises:
    FileNotFoundError: there is no model at critic.path.
    ValueError: keys do not fit, or the model at critic.path lacks ids.
  """
  chosen = parts.critic_settings(config)
  if chosen is None:
    return None
  network = policy
  if chosen.path:
    parts.require_there("critic.path", chosen.path)
    network = _network(chosen.path, _computing(config))
    if network.config.vocab_size < policy.config.vocab_size:
      raise ValueError(
          "critic.path: expected a model that knows the policy's"
          f" {policy.config.vocab_size} ids, found {network.config.vocab_size};"
          " choose one with the same tokenizer."
      )
  return critic_lib.build(
      network,
      chosen,
      parts.train_settings(config),
      parts.spec(config),
      sharding.make_mesh(config.mesh),
  )


def check(job: parts.Job) -> None:
  """Refuses a critic that cannot read as far as the policy writes.

  Raises:
    ValueError: naming the longest prompt.
  """
  made = build(job.config, job.model.policy)
  if made is not None:
    tokens = parts.sampling_settings(job.config).max_new_tokens
    parts.check_lengths(job.train_prompts, tokens, made.network, "the critic")


def trunk(
    config: ml_collections.ConfigDict, start_params: types.PyTree
) -> types.PyTree:
  """Returns the parameters that a critic's own network starts from.

  Args:
    config: of an objective with a critic.
    start_params: float32, of the policy that the run starts from.
  """
  path = parts.critic_settings(config).path
  if not path:
    return start_params
  return policy_lib.load(path, _computing(config))[1]


def _computing(config: ml_collections.ConfigDict) -> policy_lib.ModelSettings:
  """A critic computes as the policy does."""
  return settings.build(policy_lib.ModelSettings, "model", config)


@functools.lru_cache(maxsize=1)
def _network(path: str, computing: policy_lib.ModelSettings):
  """Reads a model's shape; once a run, for every round asks."""
  return policy_lib.load(path, computing)[0]
