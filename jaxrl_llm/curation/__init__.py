"""Between reward and loss: which episodes count, and how much."""
