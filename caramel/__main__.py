"""``python -m caramel`` is the command ``caramel``."""

from caramel.cli import main

if __name__ == "__main__":
    main()
