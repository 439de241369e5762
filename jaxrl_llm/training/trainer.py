"""What stays the same while a round is trained on."""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import numpy as np

from jaxrl_llm import types
from jaxrl_llm.curation import confidence
from jaxrl_llm.curation import methods
from jaxrl_llm.curation import pruning
from jaxrl_llm.losses import objective
from jaxrl_llm.models import placement
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
from jaxrl_llm.training import bandit
from jaxrl_llm.training import critic as critic_lib
from jaxrl_llm.training import scoring
from jaxrl_llm.training import settings as settings_lib
from jaxrl_llm.training import step


@dataclasses.dataclass(frozen=True)
class Trainer:
  """The fixed parts of a run.

  Attributes:
    policy: the network.
    spec: the objective.
    settings: of the trainer.
    steps: compiled functions.
    mesh: devices.
    seed: of the run.
    controls: traced numbers of the objective by name.
    reference_params: of the reference policy, or None.
    curation: step between reward and loss, or None.
    validation: records behind the validation gradient of influence.
    critic: of an objective that has one, or None.
  """

  policy: policy_lib.Policy
  spec: objective.Spec
  settings: settings_lib.TrainSettings
  steps: step.Steps
  mesh: jax.sharding.Mesh
  seed: int
  controls: Mapping[str, float]
  reference_params: types.PyTree | None
  curation: methods.Step | None = None
  validation: Sequence[types.Rollout] = ()
  critic: critic_lib.Critic | None = None

  @property
  def needs(self) -> objective.Requirements:
    """What the objective asks of training."""
    return objective.requirements(self.spec)

  @property
  def terms(self) -> frozenset[str]:
    """Prepared terms that the objective reads, whatever else is stored."""
    names = {"advantages", "weights"}
    if self.needs.proximal:
      names.add("proximal_logprobs")
    if self.needs.proximal_topk:
      names |= {"topk_ids", "topk_anchor_logprobs"}
    if self.needs.reference:
      names.add("reference_logprobs")
    return frozenset(names)

  @property
  def shape(self) -> scoring.Shape:
    """Of every micro-batch."""
    return scoring.Shape(
        self.settings.rows_per_microbatch, self.settings.tokens_per_row
    )

  @property
  def rows(self) -> jax.sharding.Sharding:
    """Where the rows of a micro-batch lie."""
    return sharding_lib.rows(self.mesh)

  @property
  def read_rows(self) -> jax.sharding.Sharding | None:
    """Where the rows lie, of which a host reads the records in its own.

    None where it reads all records: a curation cuts by what every one says.
    """
    return self.rows if self.curation is None else None


def build(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    *,
    mesh: jax.sharding.Mesh | None,
    seed: int,
    reference_params: types.PyTree | None,
    curation: methods.Step | None = None,
    validation: Sequence[types.Rollout] = (),
    critic: critic_lib.Critic | None = None,
) -> Trainer:
  """Checks what can be checked before anything is read.

  Raises:
    ValueError: settings, mesh, objective and reference do not fit; one line.
  """
  mesh = mesh or sharding_lib.make_mesh("data=1")
  rows = settings.rows_per_microbatch
  sharding_lib.check_rows("train.rows_per_microbatch", rows, mesh)
  bandit.check(settings, spec)
  needs = objective.requirements(spec)
  if needs.reference and reference_params is None:
    raise ValueError(
        f"train.reference: {spec.name} compares with a reference policy, found"
        " no reference parameters; give a model, or, where only a KL term asks"
        " for it, set its coefficient to 0."
    )
  if needs.critic and critic is None:
    raise ValueError(
        f"critic: {spec.name} takes its advantages from a critic, found none;"
        " make one with critic.build."
    )
  if critic is not None and not needs.critic:
    raise ValueError(
        f"critic: {spec.name} has none, found one; leave it out, or set"
        " objective.advantage=gae."
    )
  check_curation(curation, validation, spec)
  if reference_params is not None:
    axes = policy.axes_like(reference_params)
    places = sharding_lib.shardings(mesh, axes, reference_params)
    reference_params = placement.put(reference_params, places)
  return Trainer(
      policy=policy,
      spec=spec,
      settings=settings,
      steps=step.build(policy, spec, settings, mesh),
      mesh=mesh,
      seed=seed,
      controls={},
      reference_params=reference_params if needs.reference else None,
      curation=curation,
      validation=tuple(validation),
      critic=critic,
  )


def check_round(
    trainer: Trainer, weights: np.ndarray | None, unfinished_mask: np.ndarray
) -> None:
  """Refuses shards that mean something else to the run than they say.

  Args:
    trainer: of the run.
    weights: of rounds.Round, which have to reach every term.
    unfinished_mask: bool, responses that no verdict was given on.

  Raises:
    ValueError: in one line.
  """
  curation, count = trainer.curation, int(unfinished_mask.sum())
  if count and isinstance(curation, confidence.QuestionValue):
    raise ValueError(
        f"curation.name: codapo counts solved responses, and {count} of the"
        " round are unfinished (generation.window); choose another curation or"
        " other shards."
    )
  if weights is None:
    return
  found = "train.rollouts: the shards weigh their prompts, and "
  if trainer.needs.statistics:
    raise ValueError(
        f"{found}{trainer.spec.name} takes statistics over a whole mini-batch;"
        " choose another objective or other shards."
    )
  if not isinstance(curation, pruning.RandomPruning | None):
    raise ValueError(
        f"{found}the curation divides by its own survivors; set curation.name"
        " to none or dppo_pruning, or choose other shards."
    )


def check_curation(
    curation: methods.Step | None,
    rollouts: Sequence[types.Rollout],
    spec: objective.Spec,
) -> None:
  """Refuses a curation that does not fit, or lacks its validation records.

  Raises:
    ValueError: in one line.
  """
  methods.validate(curation, spec)
  if curation is None or not curation.reads_scores:
    return
  loss, needs = curation.validation, objective.requirements(spec)
  if loss == "batch":
    return
  if not rollouts:
    raise ValueError(
        f"curation.validation_rollouts: {loss} has a validation set, found no"
        " record; name shard folders, or set curation.validation=batch."
    )
  if loss == "sft" and not any(rollout.reward > 0 for rollout in rollouts):
    raise ValueError(
        f"curation.validation_rollouts: none of {len(rollouts)} records has a"
        " positive reward, so there is nothing to imitate; name other folders,"
        " or set curation.validation=policy_gradient."
    )
  if loss == "policy_gradient" and (
      needs.token_rewards or needs.greedy_baseline
  ):
    raise ValueError(
        f"curation.validation=policy_gradient: the advantage of {spec.name}"
        " needs token rewards or a greedy response, which validation records"
        " lack; set curation.validation=sft or batch."
    )
