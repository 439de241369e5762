"""Sampling, rewards and the resumable job that writes rollout shards."""
