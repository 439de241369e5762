"""What finished rollouts tell: objectives compared, and the report of a run."""
