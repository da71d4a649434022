"""The gRPC API: HTTP/2 transport, services of `alpacamq.v1`, health and reflection.

Only `listener.py` is imported when the broker starts. The rest, with grpclib and protobuf, is imported when
the first client connects.
"""
