"""Compares objectives on the same rollouts."""
