# SPDX-License-Identifier: Apache-2.0
"""What makes a program of the handlers: which replica acts, what it reports about itself, how it logs."""
