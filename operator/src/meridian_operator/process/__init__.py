# SPDX-License-Identifier: Apache-2.0
"""The process around the handlers: leader election, metrics and logging."""
