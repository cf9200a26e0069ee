// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/** Dead-letter and retry topics, which the client itself creates and fills, when their consumer moves. */
final class Letters extends Checks {
    private static final int REDELIVERIES = 2;
    private static final int RETRY_MS = 1_500;

    private final Region east;
    private final Region west;

    Letters(Region east, Region west) {
        this.east = east;
        this.west = west;
    }

    private static ConsumerBuilder<byte[]> builder(PulsarClient client, String topic) {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(REDELIVERIES)
                .initialSubscriptionName("first").build();
        return Moves.replicated(client, topic).subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
    }

    /** Gives a message back until it no longer comes; returns its redelivery counts. */
    private static List<Integer> giveUp(Consumer<byte[]> consumer, int number) throws Exception {
        List<Integer> counts = new ArrayList<>();
        Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
        while (message != null) {
            equal(number(message), number);
            counts.add(message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
            message = consumer.receive(counts.size() > REDELIVERIES ? 3 * QUIET_MS : 1_000 * PATIENCE_SECONDS, TimeUnit.MILLISECONDS);
        }
        return counts;
    }

    /** The copy is replicated like any message; redelivery counts belong to a region. */
    void deadLetters() throws Exception {
        String topic = Moves.TOPICS + "dead-letters";
        String dead = topic + "-s-DLQ";
        publish(east.client(), topic, 0, 1);
        try (Consumer<byte[]> here = builder(east.client(), topic).subscribe()) {
            equal(giveUp(here, 0), List.of(0, 1, 2));
            publish(east.client(), topic, 1, 2);
            here.negativeAcknowledge(receive(here));
            equal(receive(here).getRedeliveryCount(), 1);
        }
        becomes(1L, "the dead letters in the west", () -> west.entries(dead));
        // The subscription that the client has its producer create has no flag, so it exists only in its region.
        equal(east.stats(dead, "first").isReplicated(), false);
        equal(west.stats(dead, "first"), null);
        try (Consumer<byte[]> there = builder(west.client(), topic).subscribe()) {
            equal(giveUp(there, 1), List.of(0, 1, 2));
        }
        becomes(0L, "the backlog in the east", () -> east.backlog(topic, "s"));
        becomes(2L, "the dead letters in the east", () -> east.entries(dead));
        try (Consumer<byte[]> letters = Moves.replicated(east.client(), dead).subscribe()) {
            Message<byte[]> first = receive(letters);
            equal(first.getProperty("REAL_TOPIC"), topic);
            letters.acknowledgeCumulative(first);
        }
        try (Consumer<byte[]> letters = Moves.replicated(west.client(), dead).subscribe()) {
            takeNumbers(letters, List.of(1));
        }
    }

    /** The retry topic has the consumer's subscription, with its flag; the count of retries moves along. */
    void retryLetters() throws Exception {
        String topic = Moves.TOPICS + "retry-letters";
        String retry = topic + "-s-RETRY";
        String dead = topic + "-s-DLQ";
        publish(east.client(), topic, 0, 2);
        long due;
        try (Consumer<byte[]> here = builder(east.client(), topic).enableRetry(true).subscribe()) {
            List<Message<byte[]>> messages = take(here, 2);
            here.acknowledge(messages.get(1));
            due = System.currentTimeMillis() + RETRY_MS;
            here.reconsumeLater(messages.get(0), RETRY_MS, TimeUnit.MILLISECONDS);
        }
        equal(east.stats(retry, "s").isReplicated(), true);
        becomes(0L, "what the west is owed of the topic", () -> west.backlog(topic, "s"));
        becomes(1L, "what the west is owed of the retry topic", () -> west.backlog(retry, "s"));
        equal(west.stats(retry, "s").isReplicated(), true);
        try (Consumer<byte[]> there = builder(west.client(), topic).enableRetry(true).subscribe()) {
            for (int times = 1; times <= REDELIVERIES; times++) {
                Message<byte[]> again = receive(there);
                equal(System.currentTimeMillis() >= due, true);
                equal(again.getTopicName(), retry);
                equal(again.getProperty("RECONSUMETIMES"), Integer.toString(times));
                equal(again.getProperty("REAL_TOPIC"), topic);
                there.reconsumeLater(again, 100, TimeUnit.MILLISECONDS);
            }
            nothingComes(there);
        }
        becomes(1L, "the dead letters in the east", () -> east.entries(dead));
        becomes(0L, "what the east is owed of the retry topic", () -> east.backlog(retry, "s"));
        equal(west.backlog(dead, "first"), 1L);
    }
}
