"""A trainer without parameters, as the verb compile makes one."""

from jaxrl_llm.training import step
from jaxrl_llm.training import trainer as trainer_lib


def trainer(policy, spec, settings, mesh, critic=None):
  return trainer_lib.Trainer(
      policy=policy,
      spec=spec,
      settings=settings,
      steps=step.build(policy, spec, settings, mesh),
      mesh=mesh,
      seed=0,
      controls={},
      reference_params=None,
      critic=critic,
  )
