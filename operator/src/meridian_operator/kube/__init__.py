# SPDX-License-Identifier: Apache-2.0
"""What the operator writes to Kubernetes."""
