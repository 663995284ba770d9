"""The data of a call as the two sides of a transfer see it: a stream, and a sink."""

from __future__ import annotations

from mirrord.drivers.streams import SendStream, Sink
from mirrord.link.exchange import Exchange


class LinkSink:
    """The other end of a call, which verifies what it receives. Only where `Exchange.pumps`."""

    pipe = None

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def take(self, source: int, most: int) -> tuple[int, bytes | memoryview]:
        """See `Sink.take`. Raises as `Exchange.send`."""
        return self._exchange.pump(source, most)


class Incoming(SendStream):
    """The data that the other end sends."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def read(self) -> bytes | memoryview:
        """See `Exchange.read`."""
        return self._exchange.read()

    def pass_on(self, sink: Sink, most: int) -> int | None:
        """See `SendStream.pass_on`: into a pipe."""
        return None if sink.pipe is None else self._exchange.pour(sink.pipe, most)

    def close(self) -> None:
        """The call ends it."""
