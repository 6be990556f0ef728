"""`python -m hushrec`."""

from hushrec.cli import main

main()
