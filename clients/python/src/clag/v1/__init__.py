"""Messages and stubs of the package clag.v1. Do not edit."""
