# SPDX-License-Identifier: Apache-2.0
"""Objects in S3, or in a store that speaks its protocol."""
