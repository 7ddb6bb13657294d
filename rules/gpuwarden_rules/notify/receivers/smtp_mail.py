"""Sends a report as an e-mail with a text and HTML, by the mail server that an apprise address names.

apprise would make the text of a mail from its HTML, which loses the shape of tables. The `Message-ID` is made from the
message's id, so that a mail that is sent again is the same mail for servers and programs that look.
"""

import smtplib
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.receivers.receiver import (
    TIMEOUT_S,
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
)

_CONTENT_REFUSED = (552, 554)
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


def send_mail(server: Any, message: Notification) -> Outcome:
    """Send the report once, to all recipients in one transaction. No outcome shows a secret."""
    mail = mail_of(server, message)
    recipients = [*(address for _, address in server.targets), *sorted(server.cc | server.bcc)]
    try:
        with _connected(server) as smtp:
            refused = smtp.send_message(mail, server.from_addr[1], recipients)
    except smtplib.SMTPResponseException as error:
        is_final = isinstance(error, smtplib.SMTPDataError) and error.smtp_code in _CONTENT_REFUSED
        kind = DeliveryRefused if is_final else DeliveryDelayed
        return kind(f"the mail server answered {error.smtp_code}")
    except (OSError, smtplib.SMTPException) as error:
        return DeliveryDelayed(f"the mail server cannot be used: {type(error).__name__}")
    # Sent again, it would come twice to those that the server took.
    return Delivered(
        f"{len(refused)} of {len(recipients)} recipients refused" if refused else "sent"
    )


def _connected(server: Any) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if not server.verify_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    smtp: smtplib.SMTP
    if server.secure_mode == "ssl":
        smtp = smtplib.SMTP_SSL(server.smtp_host, server.port, timeout=TIMEOUT_S, context=context)
    else:
        smtp = smtplib.SMTP(server.smtp_host, server.port, timeout=TIMEOUT_S)
    try:
        if server.secure_mode == "starttls":
            smtp.starttls(context=context)
        if server.user and server.password:
            smtp.login(server.user, server.password)
    except BaseException:
        smtp.close()
        raise
    return smtp
