# SPDX-License-Identifier: Apache-2.0
"""The four kinds of ``meridian.dev/v1alpha1``: typed models and the CRDs generated from them."""
