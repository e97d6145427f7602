"""Output of a site before the first word of our own program: of login shells, module banners, and a `TaskProlog` of Slurm."""

import asyncio

MOST = 1 << 20  # bytes of such output that are skipped


async def skip_noise(stream: asyncio.StreamReader, mark: bytes) -> None:
    """Reads a stream up to the mark with which our program begins.

    Raises:
        asyncio.IncompleteReadError: the stream ends before; `partial` is all that came.
        asyncio.LimitOverrunError: more than `MOST` bytes came before it.
        ConnectionError: it broke.
    """
    printed = bytearray()
    while True:
        try:
            await stream.readuntil(mark)
        except asyncio.IncompleteReadError as error:
            raise asyncio.IncompleteReadError(bytes(printed + error.partial), None) from None
        except asyncio.LimitOverrunError as error:  # more than the stream holds
            if len(printed) > MOST:
                raise
            printed += await stream.readexactly(error.consumed)
        else:
            return
