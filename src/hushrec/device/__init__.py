"""The person's side: a local store, a ledger, and talking to a server."""
