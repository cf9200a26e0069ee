# SPDX-License-Identifier: Apache-2.0
"""The rules of verification (R60-R62) as pure functions over ranges: no Spark, no I/O, no clock."""
