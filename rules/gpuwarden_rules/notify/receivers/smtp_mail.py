"""Sends a report as an e-mail with a text and HTML, by the mail server that an apprise address names.

apprise would make the text of a mail from its HTML, which loses the shape of tables. The `Message-ID` is made from the
message's id, so that a mail that is sent again is the same mail for servers and programs that look.
"""

import contextlib
import smtplib
import socket
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.receivers.receiver import (
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
)

COMMAND_S = 60.0
"""Longest time for the connection, and for each answer to a command."""
DATA_S = 600.0
"""Longest time for the answer to the end of a mail, as RFC 5321 (4.5.3.2.6) asks: who gives up earlier sends it twice."""
_TOO_LARGE = 552
_CONTENT_REFUSED = (_TOO_LARGE, 554)
"""SMTP answers of servers that will never take a message: too large, or refused."""


def mail_of(server: Any, message: Notification) -> EmailMessage:
    """The mail of a report from the sender of `server`, apprise's plugin of the address, to its recipients."""
    assert message.report is not None
    name, sender = server.from_addr
    mail = EmailMessage()
    mail["Subject"] = message.report.title
    mail["From"] = Address(name or "", addr_spec=sender)
    mail["To"] = [Address(name or "", addr_spec=address) for name, address in server.targets]
    if server.cc:
        mail["Cc"] = ", ".join(sorted(server.cc))
    mail["Date"] = format_datetime(message.made_at)
    mail["Message-ID"] = f"<{message.id}@{sender.partition('@')[2] or 'gpuwarden'}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.report.text)
    mail.add_alternative(message.report.html, subtype="html")
    return mail


class _PatientWithData(smtplib.SMTP):
    """Waits DATA_S for the answer to a mail."""

    def data(self, msg: Any) -> tuple[int, bytes]:
        assert self.sock is not None
        self.sock.settimeout(DATA_S)
        answer = super().data(msg)
        self.sock.settimeout(COMMAND_S)
        return answer


class _PatientWithDataTls(_PatientWithData, smtplib.SMTP_SSL):
    """The same by TLS from the start."""


class SmtpMail:
    """Sends reports, one at a time, in the thread that calls."""

    def __init__(self) -> None:
        self._smtp: smtplib.SMTP | None = None
        self._is_closed = False

    def send(self, server: Any, message: Notification) -> Outcome:
        """Send the report once, to all recipients in one transaction. No outcome shows a secret."""
        mail = mail_of(server, message)
        recipients = [*(address for _, address in server.targets), *sorted(server.cc | server.bcc)]
        try:
            self._smtp = _connected(server)
            if self._is_closed:
                return DeliveryDelayed("stopped")
            refused = self._smtp.send_message(mail, server.from_addr[1], recipients)
            # Whatever it answers to this, it has taken the mail.
            with contextlib.suppress(OSError, smtplib.SMTPException):
                self._smtp.quit()
        except smtplib.SMTPResponseException as error:
            kind = DeliveryRefused if _is_final(error) else DeliveryDelayed
            return kind(f"the mail server answered {error.smtp_code}")
        except (OSError, smtplib.SMTPException) as error:
            return DeliveryDelayed(f"the mail server cannot be used: {type(error).__name__}")
        finally:
            if self._smtp:
                self._smtp.close()
            self._smtp = None
        # Sent again, it would come twice to those that the server took.
        return Delivered(
            f"{len(refused)} of {len(recipients)} recipients refused" if refused else "sent"
        )

    def close(self) -> None:
        """End a mail that is being sent, from another thread, so that a stop need not wait for the server."""
        self._is_closed = True
        connection = self._smtp.sock if self._smtp else None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _is_final(error: smtplib.SMTPResponseException) -> bool:
    """Whether the server will never take the mail; some say so at its size, before they get it."""
    if isinstance(error, smtplib.SMTPSenderRefused):
        return error.smtp_code == _TOO_LARGE
    return isinstance(error, smtplib.SMTPDataError) and error.smtp_code in _CONTENT_REFUSED


def _connected(server: Any) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if not server.verify_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    smtp: smtplib.SMTP
    if server.secure_mode == "ssl":
        smtp = _PatientWithDataTls(
            server.smtp_host, server.port, timeout=COMMAND_S, context=context
        )
    else:
        smtp = _PatientWithData(server.smtp_host, server.port, timeout=COMMAND_S)
    try:
        if server.secure_mode == "starttls":
            smtp.starttls(context=context)
        if server.user and server.password:
            smtp.login(server.user, server.password)
    except BaseException:
        smtp.close()
        raise
    return smtp
