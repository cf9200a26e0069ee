# SPDX-License-Identifier: Apache-2.0
"""Pulsar's protocol on sockets: the listener, the client side, the links between regions.

Other rooms import only these modules of it::

    addresses  authentication  authorization  broker_calls  client  client_errors  client_options  event_topic
    exchange  followed_files  key_files  known_owners  metadata_peers  metadata_session  metadata_standby
    metadata_sync  owners_feed  peer_identity  places  pulsar.broker  pulsar.connection  pulsar.listener
    pulsar_admin  region_calls  replication  roles  shadow_replication  tls  tls_listeners  token_keys  token_signing
"""
