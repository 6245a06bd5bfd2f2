"""Version of netbench, which records and files name."""

__version__ = "0.1.0"
