"""Code generated from the contract. Do not edit."""
