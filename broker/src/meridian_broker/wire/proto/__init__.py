# SPDX-License-Identifier: Apache-2.0
"""The protocol's messages. ``*_pb2.py`` and ``*_pb2.pyi`` are generated from the ``.proto`` files beside them."""
