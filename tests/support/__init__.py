"""Tools of tests that speak gRPC to a real server."""
