# SPDX-License-Identifier: Apache-2.0
"""How the verifier reads regions: the export contract of ``docs/export.md`` over HTTP, as a Spark data source."""
