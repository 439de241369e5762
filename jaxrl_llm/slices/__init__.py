"""Programs compiled for named accelerator slices, and what they would cost."""
