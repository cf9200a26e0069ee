# SPDX-License-Identifier: Apache-2.0
"""What is asked of other regions before this one answers."""
