"""What devices send: one folder per family of protocols."""
