# SPDX-License-Identifier: Apache-2.0
"""The operator's writes to Kubernetes."""
