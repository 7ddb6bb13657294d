"""Simulates GPU hosts: plausible readings of any model, with jobs and faults."""

from gpuwarden_simulator.faults.kinds import Fault, FaultKind
from gpuwarden_simulator.faults.script import load_script
from gpuwarden_simulator.jobs.placement import Placement, default_workloads
from gpuwarden_simulator.jobs.workload import Workload
from gpuwarden_simulator.node import SimulatedNode, fleet_name, fleet_nodes

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
