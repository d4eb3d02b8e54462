"""`python -m tipbench`."""

from tipbench.cli import main

main()
