"""Plain typed values that every layer shares: no gRPC, no SQL, no torch.

Imports flow edge -> domain -> engines and stores -> these types, and never back.
"""
