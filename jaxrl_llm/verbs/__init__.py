"""One file per verb; `python -m jaxrl_llm VERB` imports only its own."""
