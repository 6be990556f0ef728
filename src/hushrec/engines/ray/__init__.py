"""Engine `ray`: splits people into parts that run on the workers of a Ray cluster, or on this machine's cores."""
