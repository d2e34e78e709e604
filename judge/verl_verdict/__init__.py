"""The judge: from the records of runs to a verdict. Knows no Ray, no cluster and no container; needs numpy, scipy and PyYAML."""
