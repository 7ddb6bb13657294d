"""A GPU host that does not exist: plausible readings of any model, with jobs to diagnose."""

from gpuwarden_agent.simulator.node import ScriptedEvent, SimulatedNode, fleet_nodes
from gpuwarden_agent.simulator.schedule import Placement, default_workloads
from gpuwarden_agent.simulator.workload import Workload

__all__ = [
    "Placement",
    "ScriptedEvent",
    "SimulatedNode",
    "Workload",
    "default_workloads",
    "fleet_nodes",
]
