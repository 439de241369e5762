"""Prompts, tokenizers, rollout shards and the plan by which they are read."""
