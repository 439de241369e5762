"""Off-policy RL post-training of LLMs: rollouts in files, losses by name."""

__version__ = "0.1.0"
