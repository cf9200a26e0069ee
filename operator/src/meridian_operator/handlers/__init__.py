# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes tells us, and what we answer: kopf's handlers, thin."""
