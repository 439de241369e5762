"""Numbers with their nouns, for messages."""


def count(number: int, noun: str) -> str:
  """Returns a number with its noun, as "1 record" or "8 records"."""
  return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
