// SPDX-License-Identifier: Apache-2.0

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.common.policies.data.SubscriptionStats;

/** One region: its addresses, and what a test asks it. */
record Region(String name, String serviceUrl, PulsarClient client, PulsarAdmin admin) {
    static Region connect(String name, String serviceUrl, String adminUrl) throws PulsarClientException {
        PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(adminUrl).build();
        return new Region(name, serviceUrl, newClient(serviceUrl), admin);
    }

    /** A new client, which retries its brokers often, because regions come back soon in tests. */
    static PulsarClient newClient(String serviceUrl) throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(serviceUrl).maxBackoffInterval(500, MILLISECONDS).build();
    }

    /** Entries that a subscription is owed here; -1 while it does not exist here. */
    long backlog(String topic, String subscription) throws PulsarAdminException {
        SubscriptionStats stats = stats(topic, subscription);
        return stats == null ? -1 : stats.getMsgBacklog();
    }

    /** Statistics of a subscription; null while it does not exist here. */
    SubscriptionStats stats(String topic, String subscription) throws PulsarAdminException {
        try {
            return admin.topics().getStats(topic).getSubscriptions().get(subscription);
        } catch (PulsarAdminException.NotFoundException absent) {
            return null;
        }
    }

    /** Entries that are stored here. */
    long entries(String topic) throws PulsarAdminException {
        try {
            return admin.topics().getInternalStats(topic).numberOfEntries;
        } catch (PulsarAdminException.NotFoundException absent) {
            return 0;
        }
    }
}
