"""HTTP for `tipbench serve`, on a socket: who does not send a whole request in time is hung up on."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedHttp(H11Protocol):
    """Each request has to be there within `seconds` of the connection, or of its own first byte.

    The server's own limit is for connections that are quiet between two requests: it ends with the first
    byte, and whoever sends one now and then would hold a connection for ever.
    """

    seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begins to count."""
        super().connection_made(transport)
        self._due: asyncio.TimerHandle | None = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Stops counting when the request is whole, and begins again with the next."""
        super().data_received(data)
        if self._is_whole():
            self._forget()
        elif self._due is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._forget()
        super().connection_lost(exc)

    def _is_whole(self) -> bool:
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _expect(self) -> None:
        self._due = self.loop.call_later(self.seconds, self.transport.close)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
