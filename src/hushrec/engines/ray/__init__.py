"""Engine `ray`: parts of the people on the workers of a Ray cluster, or on the cores of this machine."""
