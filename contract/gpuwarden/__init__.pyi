from gpuwarden_client import connect as connect
from gpuwarden_client import connect_async as connect_async

__version__: str
