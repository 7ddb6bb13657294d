"""Defines all thresholds of the classes in one table; `bench/diagnosis` judges recordings by them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds in the units of their features."""

    one: float = 1
    two: float = 2
    four: float = 4
    coverage_min: float = 0.75
    warm_up: float = 600
    """A process is not judged in its first ten minutes, while it compiles and fills caches."""
    idle_percent: float = 5
    idle_tree: float = 10
    held_bytes: float = 500e6
    throttled_hw: float = 0.20
    throttled_thermal: float = 0.50
    stall: float = 0.20
    """TF Profiler calls a loop highly input-bound from this share."""
    pause_stall: float = 0.05
    busy: float = 0.80
    full: float = 0.90
    always: float = 95
    saturated: float = 60
    loader_full: float = 75
    loader_waits: float = 60
    loader_light: float = 40
    loader_quiet: float = 20
    loader_nothing: float = 5
    loader_idle: float = 70
    blocked: float = 20
    blocked_little: float = 10
    pressure_io: float = 20
    pressure_cpu: float = 30
    disk_busy: float = 80
    host_full: float = 90
    reads: float = 1e6
    reads_nothing: float = 1e5
    nfs_slow: float = 0.005
    network_per_worker: float = 1e6
    cores_each: float = 0.5
    cores_share: float = 0.6
    spare_core: float = 0.75
    """Idle cores from which one more worker helps: no core is ever completely idle."""
    fill: float = 0.80
    cgroup_throttled: float = 0.05
    main_busy: float = 80
    main_full: float = 90
    main_nothing: float = 5
    main_some: float = 20
    main_in_stall: float = 0.80
    tree_busy: float = 150
    several: float = 1.85
    pcie_full: float = 0.60
    pin_full: float = 85
    irregular: float = 0.40
    uneven_stall: float = 0.40
    uneven: float = 25
    pause: float = 8
    pause_write: float = 30e6
    little_write: float = 10e6
    pause_main: float = 50
    half_power: float = 0.50
    spin_power: float = 0.30
    weak_power: float = 0.35
    little_power: float = 0.25
    high_power: float = 0.75
    spin_s: float = 300
    hung_s: float = 900
    worked: float = 50
    blocked_main: float = 0.50
    nearly_all: float = 0.99
    tensor_nothing: float = 1
    dram_nothing: float = 3
    link_nothing: float = 0.02
    pcie_nothing: float = 0.01
    link_busy: float = 0.30
    link_some: float = 0.20
    sm_little: float = 25
    sm_half: float = 40
    tensor_little: float = 5
    tensor_low: float = 30
    tensor_busy: float = 40
    dram_busy: float = 60
    never_full: float = 70
    memory_spare: float = 0.70
    steady: float = 0.35
    clock_high: float = 0.80
    decodes: float = 5


THRESHOLDS = Thresholds()
