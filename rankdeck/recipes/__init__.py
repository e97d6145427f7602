"""Training scripts that come with rankdeck. Each is one file to read, to run (`python gpt.py --steps 100`) and to start your own script
from."""

from rankdeck.recipes._parameters import parameter, read_parameters

__all__ = ["parameter", "read_parameters"]
