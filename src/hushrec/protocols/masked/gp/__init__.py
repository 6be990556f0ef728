"""Model `gp` in the masked protocol: its plan, its public table, what devices send, and what the server learns."""
