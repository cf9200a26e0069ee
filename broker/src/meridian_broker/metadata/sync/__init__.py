# SPDX-License-Identifier: Apache-2.0
"""Metadata that converge between regions which share no store (PIP-136).

``recording`` adds to each local write, in its transaction, what other regions have to learn; ``publishing`` sends that
to the event topic, and ``applying`` takes what arrives there. ``converging`` decides; ``digests`` finds what was
missed.
"""
