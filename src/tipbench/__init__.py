"""Which small local model with which prompt writes the best tips, and how sure are we?"""

__version__ = "0.1.0"
