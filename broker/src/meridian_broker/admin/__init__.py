# SPDX-License-Identifier: Apache-2.0
"""HTTP: Pulsar's admin API, Meridian's own, export, metrics.

Other rooms import only these modules of it::

    elsewhere.users  http.gatekeeping  http.state  server
"""
