__version__ = "0.1.0"
"""The torch version this build is written for; the C++ ABI holds for no other."""
TORCH_VERSION = "2.13.0"
