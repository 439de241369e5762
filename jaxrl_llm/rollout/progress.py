"""A progress bar over responses."""

from collections.abc import Callable, Iterator
import contextlib

from rich import progress as rich_progress


@contextlib.contextmanager
def bar(
    title: str, total: int, shown: bool
) -> Iterator[Callable[[int], None]]:
  """Shows a bar of responses; yields what advances it by a number.

  Args:
    title: of the bar.
    total: responses that fill it.
    shown: False shows nothing.
  """
  columns = (
      rich_progress.TextColumn("{task.description}"),
      rich_progress.BarColumn(),
      rich_progress.MofNCompleteColumn(),
      rich_progress.TextColumn("responses"),
      rich_progress.TimeElapsedColumn(),
      rich_progress.TimeRemainingColumn(),
  )
  with rich_progress.Progress(*columns, disable=not shown) as drawn:
    task = drawn.add_task(title, total=total)
    yield lambda count: drawn.advance(task, count)
