"""What stays the same while a round is trained on."""

from collections.abc import Mapping
import dataclasses
import math

import jax

from jaxrl_llm import types
from jaxrl_llm.losses import objective
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding as sharding_lib
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
  """

  policy: policy_lib.Policy
  spec: objective.Spec
  settings: settings_lib.TrainSettings
  steps: step.Steps
  mesh: jax.sharding.Mesh
  seed: int
  controls: Mapping[str, float]
  reference_params: types.PyTree | None

  @property
  def needs(self) -> objective.Requirements:
    """What the objective asks of training."""
    return objective.requirements(self.spec)

  @property
  def terms(self) -> frozenset[str]:
    """Prepared terms that the objective reads, whatever else is stored."""
    names = {"advantages"}
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


def build(
    policy: policy_lib.Policy,
    spec: objective.Spec,
    settings: settings_lib.TrainSettings,
    *,
    mesh: jax.sharding.Mesh | None,
    seed: int,
    controls: Mapping[str, float] | None,
    reference_params: types.PyTree | None,
) -> Trainer:
  """Checks what can be checked before anything is read.

  Raises:
    ValueError: settings, mesh, objective and reference do not fit; one line.
  """
  mesh = mesh or sharding_lib.make_mesh("data=1")
  check_rows(settings, mesh)
  needs = objective.requirements(spec)
  if needs.reference and reference_params is None:
    raise ValueError(
        f"train.reference: {spec.name} has a KL to a reference policy, found"
        " no reference parameters; give a model, or set the KL coefficients"
        " to 0."
    )
  if reference_params is not None:
    places = sharding_lib.shardings(mesh, policy.logical_axes, policy.shapes)
    reference_params = jax.device_put(reference_params, places)
  return Trainer(
      policy=policy,
      spec=spec,
      settings=settings,
      steps=step.build(policy, spec, settings, mesh),
      mesh=mesh,
      seed=seed,
      controls=dict(controls or {}),
      reference_params=reference_params if needs.reference else None,
  )


def check_rows(
    settings: settings_lib.TrainSettings, mesh: jax.sharding.Mesh
) -> None:
  """Refuses micro-batches whose rows do not divide over the mesh.

  Raises:
    ValueError: with the number to take a multiple of.
  """
  parts = math.prod(mesh.shape[axis] for axis in ("data", "fsdp"))
  if settings.rows_per_microbatch % parts:
    raise ValueError(
        "train.rows_per_microbatch: expected a multiple of the mesh's"
        f" data × fsdp = {parts}, found {settings.rows_per_microbatch}; raise"
        " it to the next multiple."
    )
