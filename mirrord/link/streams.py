"""The data of a call as the receiving side of a transfer sees it."""

from __future__ import annotations

from mirrord.drivers.streams import SendStream, Sink
from mirrord.link.exchange import Exchange


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
