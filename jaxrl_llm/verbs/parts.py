"""The parts of a job, made from the configuration: model, prompts, grader."""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import pathlib

import jax
import ml_collections

from jaxrl_llm import hosts
from jaxrl_llm import types
from jaxrl_llm.allocation import interface
from jaxrl_llm.allocation import registry
from jaxrl_llm.curation import methods
from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.data import shards
from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.evaluation import settings as evaluation_lib
from jaxrl_llm.losses import algorithms
from jaxrl_llm.losses import objective
from jaxrl_llm.models import placement
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.rollout import generator
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import sampler
from jaxrl_llm.slices import inputs
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.verbs import folders
from jaxrl_llm.verbs import keys
from jaxrl_llm.verbs import record
from jaxrl_llm.verbs import settings

Tokenizer = tokenizer_lib.Tokenizer
Prompt = prompts_lib.Prompt
# Keys without which a checkpoint would be read as another model's.
_GROWN_FROM = (
    "model.path", "model.preset", "model.tokenizer", "model.lora_rank",
    "model.lora_alpha", "model.lora_targets", "model.lora_base_dtype",
)


@dataclasses.dataclass(frozen=True)
class Model:
  """A network, its parameters before any training, its tokenizer."""

  policy: policy_lib.Policy
  start_params: types.PyTree
  tokenizer: tokenizer_lib.Tokenizer


@dataclasses.dataclass(frozen=True)
class Job:
  """What generation and evaluation share.

  Attributes:
    config: the whole configuration.
    model: network, parameters and tokenizer.
    train_prompts: problems to generate for.
    evaluation_prompts: held-out problems.
    grader: of responses.
  """

  config: ml_collections.ConfigDict
  model: Model
  train_prompts: Sequence[Prompt]
  evaluation_prompts: Sequence[Prompt]
  grader: rewards.Grader


def job(config: ml_collections.ConfigDict) -> Job:
  """Makes everything; cheap checks come before the model is read."""
  key, smallest = allocator(config).smallest_group(budget(config))
  if smallest < 2 and objective.requirements(spec(config)).group_baseline:
    raise ValueError(
        f"{key}: expected at least 2, since {config.objective.name} compares"
        f" the samples of a group, found {smallest}; raise it, or choose an"
        " objective that does not (objective.advantage=reward, or"
        " objective.name=sft)."
    )
  curation(config)
  critic_settings(config)
  train_settings(config)
  evaluation_settings(config)
  sharding.check_rows(
      "generation.slots", config.generation.slots, generating_mesh(config)
  )
  text_tokenizer = tokenizer(config)
  train_prompts, evaluation_prompts = prompts(config, text_tokenizer)
  network = model(config, text_tokenizer)
  _check_topk(sampling_settings(config).record_topk, network.policy)
  _check_ids([*train_prompts, *evaluation_prompts], network.policy)
  check_lengths(
      [*train_prompts, *evaluation_prompts],
      sampling_settings(config).max_new_tokens,
      network.policy,
  )
  return Job(
      config=config,
      model=network,
      train_prompts=train_prompts,
      evaluation_prompts=evaluation_prompts,
      grader=grader(config),
  )


def tokenizer(config: ml_collections.ConfigDict) -> Tokenizer:
  """Loads model.tokenizer, else the model's own, else one id per byte.

  All hosts call; what one of them lacks stops all.
  """
  chosen = settings.build(policy_lib.ModelSettings, "model", config)

  def load():
    if chosen.path and not pathlib.Path(chosen.path).exists():
      raise FileNotFoundError(
          f"model.path: there is nothing at {chosen.path}; correct it, or"
          " fetch the model (experiments/fetch_smollm2.sh brings SmolLM2)."
      )
    return tokenizer_lib.load(chosen.tokenizer or chosen.path or "bytes")

  return hosts.together(load)


def model(
    config: ml_collections.ConfigDict, text_tokenizer: Tokenizer
) -> Model:
  """Reads the weights of model.path, or draws those of model.preset.

  They are laid over the mesh at once: what is compiled for them serves the
  trained ones too. All hosts call; what one of them lacks stops all.

  Raises:
    FileNotFoundError: there is no model at the path.
    ValueError: the tokenizer has ids that the model does not know.
  """
  chosen = settings.build(policy_lib.ModelSettings, "model", config)
  if not -(2**63) <= config.seed < 2**63:
    raise ValueError(
        f"seed: expected an integer of 64 bits, found {config.seed}; choose a"
        " smaller one."
    )
  mesh = sharding.make_mesh(config.mesh)
  policy, params = hosts.together(
      lambda: policy_lib.load(chosen.path, chosen, config.seed, mesh)
  )
  if text_tokenizer.needed_size > policy.config.vocab_size:
    raise ValueError(
        f"model.tokenizer: it has ids up to {text_tokenizer.needed_size - 1},"
        f" the model knows those below {policy.config.vocab_size}; leave"
        " model.tokenizer empty to take the model's own."
    )
  return Model(policy, params, text_tokenizer)


def generating_mesh(config: ml_collections.ConfigDict) -> jax.sharding.Mesh:
  """Returns the mesh that this process generates on, with its own devices."""
  return placement.of_this_host(sharding.make_mesh(config.mesh))


def generating_copy(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    params: types.PyTree,
) -> types.PyTree:
  """Returns parameters on `generating_mesh`; all hosts must call.

  Where they are moved between hosts, masters are rounded before: sampling
  reads them in the compute dtype.
  """
  mesh = sharding.make_mesh(config.mesh)
  rounds = policy.lora is None and policy.compute_dtype != "float32"
  if jax.process_count() > 1 and rounds:
    shapes = jax.eval_shape(policy.compute_copy, params)
    at = sharding.shardings(mesh, policy.axes_like(shapes), shapes)
    params = jax.jit(policy.compute_copy, out_shardings=at)(params)
  return placement.copy_here(params, policy.axes_like(params), mesh)


def placed_shapes(
    config: ml_collections.ConfigDict, policy: policy_lib.Policy
) -> types.PyTree:
  """Returns the parameters as shapes with their places on the mesh."""
  return inputs.parameters(policy, sharding.make_mesh(config.mesh))


def start_like(
    config: ml_collections.ConfigDict, model: Model
) -> types.PyTree:
  """Returns what a checkpoint is restored into.

  The weights beside adapters are those of the start: no checkpoint has them.
  """
  shapes = placed_shapes(config, model.policy)
  return policy_lib.with_trained(
      model.start_params, policy_lib.trained(shapes)
  )


def prompts(
    config: ml_collections.ConfigDict, text_tokenizer: Tokenizer
) -> tuple[list[Prompt], list[Prompt]]:
  """Loads and renders the problems to train and to evaluate on.

  All hosts call; what one of them lacks stops all.
  """
  chosen = settings.build(prompts_lib.PromptSettings, "prompts", config)
  train, evaluation = hosts.together(
      lambda: prompts_lib.load(chosen, config.seed)
  )
  return (
      prompts_lib.render(train, chosen, text_tokenizer),
      prompts_lib.render(evaluation, chosen, text_tokenizer),
  )


def grader(config: ml_collections.ConfigDict) -> rewards.Grader:
  """Makes the verifier of responses."""
  return rewards.build(
      settings.build(rewards.RewardSettings, "reward", config),
      settings.build(prompts_lib.PromptSettings, "prompts", config),
  )


def spec(config: ml_collections.ConfigDict) -> objective.Spec:
  """Makes the objective."""
  return algorithms.build(settings.overrides("objective", config))


def curation(config: ml_collections.ConfigDict) -> methods.Step | None:
  """Makes the step between reward and loss; None for curation.name=none.

  Raises:
    ValueError: it does not fit the objective, or a key does not fit it.
  """
  step = methods.build(settings.overrides("curation", config))
  methods.validate(step, spec(config))
  return step


def critic_settings(
    config: ml_collections.ConfigDict,
) -> critic_lib.CriticSettings | None:
  """Makes the settings of the critic; None for an objective without one.

  Raises:
    ValueError: keys are set that nothing would read, or a value is wrong.
  """
  chosen = settings.overrides("critic", config)
  names = [f"critic.{name}" for name in chosen]
  fields = dataclasses.fields(critic_lib.CriticSettings)
  keys.check(names, [f"critic.{field.name}" for field in fields], "critic")
  if objective.requirements(spec(config)).critic:
    return critic_lib.CriticSettings(**chosen)
  if chosen:
    raise ValueError(
        f"{names[0]}: {config.objective.name} has no critic; set"
        " objective.advantage=gae, or leave the critic's keys unset."
    )
  return None


def require_there(key: str, path: str) -> None:
  """Refuses a model beside the policy's that is not there.

  Raises:
    FileNotFoundError: naming the key.
  """
  if not pathlib.Path(path).expanduser().exists():
    raise FileNotFoundError(f"{key}: there is nothing at {path}; correct it.")


def check_reference(config: ml_collections.ConfigDict) -> None:
  """Refuses a train.reference that is not there, before anything is made."""
  path = config.train.reference
  if path and objective.requirements(spec(config)).reference:
    require_there("train.reference", path)


def reference(
    config: ml_collections.ConfigDict, model: Model
) -> types.PyTree:
  """Reads train.reference; the start policy where it is empty.

  Raises:
    FileNotFoundError: there is no model at the path.
    ValueError: train.reference_dtype is not what the start policy, which is
      the reference, is stored in.
  """
  path, dtype = config.train.reference, config.train.reference_dtype
  if path:
    require_there("train.reference", path)
    computing = settings.build(policy_lib.ModelSettings, "model", config)
    computing = computing.without_adapters()
    mesh = sharding.make_mesh(config.mesh)
    return policy_lib.load(
        path, computing, mesh=mesh, storage=dtype or "float32"
    )[1]
  base = policy_lib.base(model.start_params)
  if base is None:
    return model.policy.freeze(model.start_params, dtype or "float32")
  stored = model.policy.base_dtype
  if dtype not in (None, stored):
    raise ValueError(
        "train.reference_dtype: the reference is the base of the adapters,"
        f" stored in {stored}, found {dtype}; leave it unset, or name a"
        " train.reference."
    )
  return base


def validation_rollouts(
    config: ml_collections.ConfigDict, text_tokenizer: Tokenizer
) -> list[types.Rollout]:
  """Reads the records of curation.validation_rollouts; none where unset."""
  names = config.curation.validation_rollouts
  if not names:
    return []
  opened = [
      shards.open_folder(
          path, tokenizer_fingerprint=text_tokenizer.fingerprint
      )
      for path in folders.rollouts(names, None)
  ]
  rollouts = [folder[n] for folder in opened for n in range(len(folder))]
  return [rollout for rollout in rollouts if rollout.role == "train"]


def train_settings(
    config: ml_collections.ConfigDict,
) -> settings_lib.TrainSettings:
  """Makes the settings of training."""
  return settings.build(settings_lib.TrainSettings, "train", config)


def sampling_settings(
    config: ml_collections.ConfigDict,
) -> sampler.SamplingSettings:
  """Makes the settings of sampling."""
  return settings.build(sampler.SamplingSettings, "sampling", config)


def generation_settings(
    config: ml_collections.ConfigDict,
) -> generator.GenerationSettings:
  """Makes the settings of generation."""
  return settings.build(generator.GenerationSettings, "generation", config)


def budget(config: ml_collections.ConfigDict) -> interface.Budget:
  """Says what the run means to generate."""
  generation = generation_settings(config)
  return interface.Budget(
      prompts=generation.prompts_per_round,
      samples=generation.samples_per_prompt,
      rounds=config.run.rounds,
  )


def allocator(config: ml_collections.ConfigDict) -> interface.Allocator:
  """Makes what shares out the rollouts of a round."""
  made = registry.build(settings.overrides("allocation", config))
  made.check_budget(budget(config))
  if made.weighs:
    _check_weights(config)
  return made


def _check_weights(config: ml_collections.ConfigDict) -> None:
  """Refuses what would not carry the weights of prompts into every term."""
  found = f"allocation.name: {config.allocation.name} weighs prompts, "
  if objective.requirements(spec(config)).statistics:
    raise ValueError(
        f"{found}and {config.objective.name} takes statistics over a whole"
        " mini-batch; choose another objective or allocation."
    )
  if config.curation.name not in (methods.NONE, "dppo_pruning"):
    raise ValueError(
        f"{found}and curation.name={config.curation.name} divides by its own"
        " survivors; set it to none or dppo_pruning."
    )


def evaluation_settings(
    config: ml_collections.ConfigDict,
) -> evaluation_lib.EvaluationSettings:
  """Makes the settings of evaluation."""
  return settings.build(
      evaluation_lib.EvaluationSettings, "evaluation", config
  )


def checkpoint(
    config: ml_collections.ConfigDict, workdir: pathlib.Path, number: str
) -> pathlib.Path:
  """Returns a checkpoint by its number of updates; the latest where empty.

  Raises:
    FileNotFoundError: there is none, or not that one.
    ValueError: it grew out of another model than the configuration names.
  """
  steps = checkpoints.complete_steps(folders.checkpoints(workdir))
  found = [path for step, path in steps.items() if number in ("", str(step))]
  if not found:
    known = ", ".join(map(str, steps)) or "none"
    raise FileNotFoundError(
        f"{folders.checkpoints(workdir)}: expected a checkpoint"
        f" {number or 'of a training run'}, found {known}; train first, or"
        " correct the number."
    )
  record.agree(config, _GROWN_FROM, workdir)
  return found[-1]


def lineage(config: ml_collections.ConfigDict, params: types.PyTree) -> str:
  """Names the policies that grow out of these weights under this config."""
  sections = (
      "seed", "model", "prompts", "sampling", "generation", "reward",
      "objective", "train",
  )
  if curation(config) is not None:
    sections += ("curation",)
  if critic_settings(config) is not None:
    sections += ("critic",)
  chosen = {
      key: value
      for key, value in record.select(config, sections).items()
      if not keys.within(key, (*record.HARMLESS, "model"))
  }
  if config.allocation.name != "uniform":
    set_keys = settings.overrides("allocation", config)
    chosen |= {f"allocation.{key}": value for key, value in set_keys.items()}
  text = json.dumps([policy_lib.fingerprint(params), chosen], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_topk(topk: int, policy: policy_lib.Policy) -> None:
  """Refuses to record more ids than the model has."""
  if topk > policy.config.vocab_size:
    raise ValueError(
        "sampling.record_topk: expected at most the model's"
        f" {policy.config.vocab_size} ids, found {topk}; lower it."
    )


def _check_ids(chosen: Sequence[Prompt], policy: policy_lib.Policy) -> None:
  """Refuses a prompt with a control token that the model does not have."""
  size = policy.config.vocab_size
  for prompt in chosen:
    if prompt.tokens.max() >= size:
      raise ValueError(
          f"prompt {prompt.text[:40]!r}… has the id {prompt.tokens.max()}, the"
          f" model knows those below {size}; leave the control token out of the"
          " problem."
      )


def check_lengths(
    chosen: Sequence[Prompt],
    max_new_tokens: int,
    policy: policy_lib.Policy,
    whose: str = "the model",
) -> None:
  """Refuses a prompt whose response would leave a model's context."""
  longest = max(chosen, key=lambda prompt: prompt.tokens.size)
  limit = policy.config.context_length
  if longest.tokens.size + max_new_tokens > limit:
    raise ValueError(
        f"prompt {longest.text[:40]!r}… has {longest.tokens.size} tokens and"
        f" sampling.max_new_tokens is {max_new_tokens}; the context of"
        f" {whose} is {limit}. Lower prompts.max_tokens (with"
        " prompts.drop_long) or sampling.max_new_tokens."
    )
