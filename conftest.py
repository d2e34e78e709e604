"""What every pytest file of this repository may use, wherever it is: the fixtures of tests/shared_fixtures.py."""

pytest_plugins = ["shared_fixtures"]
