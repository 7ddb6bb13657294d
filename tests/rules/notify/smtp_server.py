"""A real SMTP server on loopback that keeps the mails that it takes, and misbehaves as told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass
class TakenMail:
    """A mail as it came."""

    sender: str
    recipients: list[str]
    mail: EmailMessage


async def accept(taken: TakenMail) -> str:
    """Take every mail."""
    return "250 taken"


@dataclass
class SmtpServer:
    """The server: its port, the mails that it took, and its answer to the end of a mail."""

    port: int = 0
    taken: list[TakenMail] = field(default_factory=list)
    tried: int = 0
    answer: Callable[[TakenMail], Awaitable[str]] = accept
    refused: tuple[str, ...] = ()
    """Recipients that it refuses."""
    to_sender: str = "250 ok"
    """Its answer to `MAIL FROM`."""
    to_quit: str = "221 bye"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        sender, recipients = "", []
        await say("220 test")
        try:
            while line := (await reader.readline()).decode().strip():
                verb = line.partition(":")[0].upper()
                if verb == "MAIL FROM":
                    sender, recipients = line[10:].strip("<> "), []
                    sender = sender.partition(">")[0]
                    await say(self.to_sender)
                elif verb == "RCPT TO":
                    address = line[8:].strip("<> ")
                    if address in self.refused:
                        await say("550 unknown")
                        continue
                    recipients.append(address)
                    await say("250 ok")
                elif verb == "DATA":
                    await say("354 send it")
                    body = await reader.readuntil(b"\r\n.\r\n")
                    mail = message_from_bytes(
                        body[:-3].replace(b"\r\n..", b"\r\n."), policy=policy.default
                    )
                    assert isinstance(mail, EmailMessage)
                    taken = TakenMail(sender, recipients, mail)
                    self.tried += 1
                    said = await self.answer(taken)
                    if said.startswith("250"):
                        self.taken.append(taken)
                    await say(said)
                elif verb == "QUIT":
                    await say(self.to_quit)
                    break
                else:
                    await say("250 ok")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender was killed
        finally:
            writer.close()


@asynccontextmanager
async def smtp_server() -> AsyncIterator[SmtpServer]:
    """A server on a free port of loopback."""
    found = SmtpServer()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, limit=2**24)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
