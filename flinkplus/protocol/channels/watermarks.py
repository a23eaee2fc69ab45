"""The watermark of one subtask: the progress of event time on all of its input channels together.

A channel's watermark promises that no row before it will still arrive on that channel. The subtask's watermark is the
minimum over its channels. A channel that has ended does not count; one without a watermark so far keeps the subtask
without one. Nor does a channel count whose producer says that it is *idle* (``IDLE_MS``), until its next watermark,
which may be behind the subtask's by then. If all channels are idle, the watermark stays.

Rules and invariants:

- the watermarks are a pure function of the messages taken, so repeated steps have the same ones;
- the subtask's watermark never goes back, nor does a channel's, unless it was idle: one that does not rise changes
  nothing (with weaker guarantees messages arrive again);
- the end of all channels is the end of time; it is not reported here: the step that takes the last end of input knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flinkplus.protocol.vocabulary.ids import ChannelId

END_OF_TIME_MS = (1 << 63) - 1
"""After every row and every timer: the watermark when all input has ended."""
START_OF_TIME_MS = -(1 << 63)
IDLE_MS = START_OF_TIME_MS
"""In the place of a watermark: no rows may come for long, so event time must not wait for the sender."""
COMBINED = "combined"
"""In what is saved, the subtask's watermark, where those of its channels do not say it."""


class InputWatermarks:
    """The watermarks of all input channels of a subtask, in milliseconds.

    ``saved``: what ``saved`` returned for a snapshot.
    ``ended``: the channels that had ended by then.
    """

    __slots__ = ("_channels", "_combined", "_ended", "_known")

    def __init__(
        self, channels: Sequence[ChannelId], saved: Mapping[str, int] | None = None, ended: Sequence[ChannelId] = ()
    ) -> None:
        self._channels = tuple(channels)
        self._ended = set(ended)  # looked up, never iterated
        self._known = {channel: saved[str(channel)] for channel in self._channels if saved and str(channel) in saved}
        self._combined = START_OF_TIME_MS
        if self._known:
            self._combined = (saved or {}).get(COMBINED, self._least())

    def advance(self, channel: ChannelId, watermark_ms: int) -> int | None:
        """A step took a watermark from ``channel``. Returns the subtask's if it has risen, otherwise ``None``."""
        before = self._known.get(channel, START_OF_TIME_MS)
        if channel in self._ended or not (watermark_ms == IDLE_MS or before < watermark_ms < END_OF_TIME_MS):
            return None
        self._known[channel] = watermark_ms
        return self._risen() if before <= self._combined else None

    def end(self, channel: ChannelId) -> int | None:
        """``channel`` has ended, and others have not. Returns the subtask's watermark if that has raised it."""
        self._ended.add(channel)
        return self._risen() if self._known else None

    def _risen(self) -> int | None:
        least = self._least()
        if least <= self._combined or least == END_OF_TIME_MS:
            return None
        self._combined = least
        return least

    def _least(self) -> int:
        """Over the channels that count; ``END_OF_TIME_MS``: none does."""
        known = [self._known.get(channel) for channel in self._channels if channel not in self._ended]
        counted = [START_OF_TIME_MS if ms is None else ms for ms in known if ms != IDLE_MS]
        return min(counted, default=END_OF_TIME_MS)

    def saved(self) -> dict[str, int]:
        """For a snapshot, JSON; empty in a job without watermarks."""
        found = {str(channel): watermark_ms for channel, watermark_ms in self._known.items()}
        if self._known and self._combined != self._least():
            found[COMBINED] = self._combined
        return found
