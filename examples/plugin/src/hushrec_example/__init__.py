"""Plug-ins for hushrec, one of each kind."""
