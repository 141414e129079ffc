"""A graph as text and as a picture."""

from batchqueue.pipeline.drawing.activity import activity_of
from batchqueue.pipeline.drawing.explain import explained
from batchqueue.pipeline.drawing.svg import Activity, svg

__all__ = ["Activity", "activity_of", "explained", "svg"]
