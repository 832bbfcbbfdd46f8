"""The edge: gRPC in and out, thin. A handler validates, converts, makes one domain call and converts back."""
