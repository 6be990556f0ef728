"""The engine `ray`: it divides people into parts, which run on the workers of a Ray cluster or on this machine."""
