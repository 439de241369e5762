"""Turns rollout folders into better weights."""
