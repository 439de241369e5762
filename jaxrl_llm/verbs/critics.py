"""The critic of a run, made from the configuration."""

import functools

import jax
import ml_collections

from jaxrl_llm import types
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import settings


def build(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh | None = None,
) -> critic_lib.Critic | None:
  """Makes the critic; None for an objective without one.

  Args:
    config: the whole configuration.
    policy: that a critic without a model of its own reads.
    mesh: devices; None takes those of the configuration's mesh.

  Raises:
    FileNotFoundError: there is no model at critic.path.
    ValueError: keys do not fit, or the model at critic.path lacks ids.
  """
  chosen = parts.critic_settings(config)
  if chosen is None:
    return None
  if not chosen.path:
    whole = chosen.kind == "network"
    network = policy.without_adapters() if whole else policy
  else:
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
      sharding.make_mesh(config.mesh) if mesh is None else mesh,
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
    config: ml_collections.ConfigDict, model: parts.Model
) -> types.PyTree:
  """Returns the float32 parameters that a critic's own network starts from.

  Args:
    config: of an objective with a critic.
    model: that the run starts from.
  """
  chosen = parts.critic_settings(config)
  if not chosen.path:
    # A head reads the policy, whatever that is made of.
    whole = chosen.kind == "network"
    start = model.start_params
    return model.policy.merged(start) if whole else start
  mesh = sharding.make_mesh(config.mesh)
  return policy_lib.load(chosen.path, _computing(config), mesh=mesh)[1]


def _computing(config: ml_collections.ConfigDict) -> policy_lib.ModelSettings:
  """A critic computes as the policy does, and is trained as a whole."""
  chosen = settings.build(policy_lib.ModelSettings, "model", config)
  return chosen.without_adapters()


@functools.lru_cache(maxsize=1)
def _network(path: str, computing: policy_lib.ModelSettings):
  """Reads a model's shape; once a run, for every round asks."""
  return policy_lib.network(path, computing)
