"""Exact match, majority vote and pass@k, with their confidence intervals."""
