"""Settings of all tests."""

import os

import java_machines

os.environ.update(java_machines.short_lived())
