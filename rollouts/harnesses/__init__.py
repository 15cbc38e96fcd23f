"""Agent harnesses: what decides how a model and a world take turns."""

from palestra.rollouts.harnesses.base import Endpoint, Harness
from palestra.rollouts.harnesses.command_line import CommandLineHarness
from palestra.rollouts.harnesses.demonstrator import Demonstrator
from palestra.rollouts.harnesses.scripted import ScriptedHarness
from palestra.rollouts.harnesses.tool_loop import ToolLoop

__all__ = ["CommandLineHarness", "Demonstrator", "Endpoint", "Harness", "ScriptedHarness", "ToolLoop"]
