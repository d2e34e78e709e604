"""The judge: from the records of runs to a verdict. Knows no Ray, no cluster and no container; needs numpy, scipy and matplotlib."""

__version__ = "1.3.0"  # that of py/verl_regress/__init__.py
