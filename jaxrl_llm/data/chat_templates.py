"""Compiles the jinja2 chat templates that come with models, in a sandbox."""

import functools
import json

import jinja2
import jinja2.sandbox


@functools.lru_cache(maxsize=8)
def compiled(source: str) -> jinja2.Template:
  """Compiles a chat template with the names that templates expect.

  `strftime_now` is left undefined on purpose: a template that finds it would
  write today's date into prompts, and runs would not repeat.

  Raises:
    jinja2.TemplateSyntaxError: the source is no template.
  """
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=["jinja2.ext.loopcontrols"],
  )
  environment.globals["raise_exception"] = _refuse
  environment.filters["tojson"] = functools.partial(
      json.dumps, ensure_ascii=False
  )
  return environment.from_string(source)


def _refuse(message: str) -> None:
  """Lets a template refuse its messages."""
  raise jinja2.TemplateError(message)
