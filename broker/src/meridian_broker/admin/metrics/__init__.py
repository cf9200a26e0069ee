# SPDX-License-Identifier: Apache-2.0
"""``/metrics``: Prometheus text. Pulsar's names where Pulsar has the metric, ``meridian_`` for our own."""
