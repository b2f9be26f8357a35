"""`python -m surefoot`, for when the script `surefoot` is not on the path."""

import sys

from surefoot.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
