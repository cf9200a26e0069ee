# SPDX-License-Identifier: Apache-2.0
"""Names of topics, who watches them, and their schemas. No topic is opened here."""
