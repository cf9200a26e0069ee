# SPDX-License-Identifier: Apache-2.0
"""What is to be done: pure functions from what shall be and what is to a list of typed changes."""
