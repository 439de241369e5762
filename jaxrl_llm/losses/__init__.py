"""Objectives for off-policy RL post-training: pure jax, no model, no I/O."""
