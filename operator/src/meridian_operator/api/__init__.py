# SPDX-License-Identifier: Apache-2.0
"""The four kinds, ``meridian.dev/v1alpha1``: typed models, and the CRDs that are made from them."""
