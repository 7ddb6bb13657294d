"""A GPU host that does not exist: plausible readings of any model, with jobs and faults to diagnose."""

from gpuwarden_agent.simulator.faults import Fault, FaultKind
from gpuwarden_agent.simulator.node import SimulatedNode, fleet_name, fleet_nodes
from gpuwarden_agent.simulator.schedule import Placement, default_workloads
from gpuwarden_agent.simulator.script import load_script
from gpuwarden_agent.simulator.workload import Workload

__all__ = [
    "Fault",
    "FaultKind",
    "Placement",
    "SimulatedNode",
    "Workload",
    "default_workloads",
    "fleet_name",
    "fleet_nodes",
    "load_script",
]
