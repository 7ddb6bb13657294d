"""Names the sender of a batch by its token; ledger, quota and clock check count by sender."""

NOBODY = ""
"""The sender where no tokens are required."""
_NODE, _TOKEN = "node:", "token:"


def node_sender(node: str) -> str:
    """The sender of a token that is bound to a node; every token of the node is the same sender."""
    return _NODE + node


def token_sender(name: str) -> str:
    """The sender of a token for any node."""
    return _TOKEN + name


def is_of_node(sender: str) -> bool:
    """Whether the sender may send rows of one node only."""
    return sender.startswith(_NODE)


def is_of_token(sender: str) -> bool:
    """Whether the sender may send rows of any node, by a token."""
    return sender.startswith(_TOKEN)


def sender_text(sender: str) -> str:
    """A sender with a token, for people: `node gpu-01`."""
    kind, _, name = sender.partition(":")
    return f"{kind} {name}"
