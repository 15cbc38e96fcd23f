"""Where tests/services/openenv.sh puts OpenEnv's client: its requirements do not go together with ours."""

from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / ".cache" / "openenv" / "bin" / "python"
