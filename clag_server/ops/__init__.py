"""What an operator meets: locks, sockets, TLS, tokens, logs, signals."""
