"""Devices with a clock: speeds, networks and availability decide how much work each device does by the deadline."""

from __future__ import annotations

from fedprox.participation.clock.availability import Asked
from fedprox.participation.clock.clock import Clock, Timed, build_clock
from fedprox.participation.clock.fleet_file import FleetDevices, is_fleet_file
from fedprox.participation.clock.profiles import (
    DeviceClass,
    Profile,
    ProfileDevices,
    profile_names,
    read_profile,
    write_profile,
)
from fedprox.participation.clock.sources import Source, build_source
from fedprox.participation.clock.timing import Devices
from fedprox.participation.clock.trace import Trace, read_trace

__all__ = [
    "Asked",
    "Clock",
    "DeviceClass",
    "Devices",
    "FleetDevices",
    "Profile",
    "ProfileDevices",
    "Source",
    "Timed",
    "Trace",
    "build_clock",
    "build_source",
    "is_fleet_file",
    "profile_names",
    "read_profile",
    "read_trace",
    "write_profile",
]
