// SPDX-License-Identifier: Apache-2.0

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MessageIdImpl;

/** What the admin client does to a replicated subscription or its topic in one region, seen from the other one. */
final class Steering extends Checks {
    private final Region east;
    private final Region west;

    Steering(Region east, Region west) {
        this.east = east;
        this.west = west;
    }

    private void owedEverywhere(String topic, long count) throws Exception {
        for (Region region : List.of(west, east)) {
            becomes(count, "what " + region.name() + " is owed", () -> region.backlog(topic, "s"));
        }
    }

    /** R12: skipping acknowledges and going back rewinds, in every region. R14: expiry is one region's own. */
    void cursors() throws Exception {
        String topic = Moves.TOPICS + "steered";
        Topics here = east.admin().topics();
        here.createNonPartitionedTopic(topic);
        here.createSubscription(topic, "s", MessageId.earliest, true);
        becomes(0L, "the subscription in the west", () -> west.backlog(topic, "s"));
        equal(west.stats(topic, "s").isReplicated(), true);
        List<MessageId> ids = publish(east.client(), topic, 0, 5);
        Thread.sleep(2);
        long middle = System.currentTimeMillis();
        ids.addAll(publish(east.client(), topic, 5, 10));
        owedEverywhere(topic, 10);
        here.skipMessages(topic, "s", 3);
        owedEverywhere(topic, 7);
        west.admin().topics().skipMessages(topic, "s", 3);
        owedEverywhere(topic, 4);
        here.resetCursor(topic, "s", ids.get(2));
        owedEverywhere(topic, 8);
        west.admin().topics().resetCursor(topic, "s", middle);
        owedEverywhere(topic, 5);
        west.admin().topics().skipAllMessages(topic, "s");
        owedEverywhere(topic, 0);
        here.resetCursor(topic, "s", 0);
        owedEverywhere(topic, 10);
        expiry(topic, (MessageIdImpl) ids.get(3));
        places(topic, middle);
    }

    private void expiry(String topic, MessageIdImpl fourth) throws Exception {
        east.admin().topics().expireMessages(topic, "s", fourth, false);
        becomes(6L, "what the east is owed after its own expiry", () -> east.backlog(topic, "s"));
        equal(west.backlog(topic, "s"), 10L);
        east.admin().topics().resetCursor(topic, "s", 0);
        owedEverywhere(topic, 10);
    }

    /** Ids differ by region, but the same time leads to the same message. */
    private void places(String topic, long middle) throws Exception {
        for (Region region : List.of(east, west)) {
            MessageId found = region.admin().topics().getMessageIdByTimestamp(topic, middle);
            region.admin().topics().resetCursor(topic, "s", found);
            owedEverywhere(topic, 5);
            MessageId last = region.admin().topics().getLastMessageId(topic);
            region.admin().topics().resetCursor(topic, "s", last);
            owedEverywhere(topic, 1);
        }
        try (Consumer<byte[]> there = Moves.replicated(west.client(), topic).subscribe()) {
            takeNumbers(there, List.of(9));
        }
    }

    /**
     * R13: consumers elsewhere are disconnected and get the messages again. Those that acknowledge cumulatively must be
     * reopened: as long as it is the same consumer, clients drop what it acknowledged that way, and it stays owed.
     */
    void rewinds() throws Exception {
        String topic = Moves.TOPICS + "rewound";
        List<MessageId> ids = publish(east.client(), topic, 0, 10);
        ConsumerBuilder<byte[]> builder = Moves.replicated(west.client(), topic)
                .subscriptionType(SubscriptionType.Failover);
        Consumer<byte[]> there = builder.subscribe();
        takeNumbers(there, IntStream.range(0, 10).boxed().toList());
        owedEverywhere(topic, 0);
        try (Consumer<byte[]> here = Moves.replicated(east.client(), topic).startMessageIdInclusive().subscribe()) {
            here.seek(ids.get(6));
            takeNumbers(there, List.of(6, 7, 8, 9));
        }
        owedEverywhere(topic, 0);
        east.admin().topics().resetCursor(topic, "s", 0);
        there.acknowledgeCumulative(take(there, 10).get(7));
        owedEverywhere(topic, 2);
        east.admin().topics().resetCursor(topic, "s", ids.get(3));
        takeNumbers(there, List.of(8, 9));
        owedEverywhere(topic, 5);
        there.close();
        there = builder.subscribe();
        takeNumbers(there, List.of(3, 4, 5, 6, 7));
        there.close();
    }

    /** R16: neither client nor API removes it while the other region has consumers; then it is gone in both. */
    void unsubscribing() throws Exception {
        String topic = Moves.TOPICS + "unsubscribed";
        Consumer<byte[]> here = Moves.replicated(east.client(), topic).subscribe();
        Consumer<byte[]> there = Moves.replicated(west.client(), topic).subscribe();
        refused(PulsarClientException.class, here::unsubscribe);
        refused(PulsarAdminException.PreconditionFailedException.class,
                () -> east.admin().topics().deleteSubscription(topic, "s"));
        there.close();
        here.unsubscribe();
        for (Region region : List.of(east, west)) {
            becomes(-1L, "the subscription in " + region.name(), () -> region.backlog(topic, "s"));
        }
        east.admin().topics().createSubscription(topic, "s", MessageId.earliest, true);
        becomes(0L, "the subscription in the west", () -> west.backlog(topic, "s"));
        west.admin().topics().deleteSubscription(topic, "s");
        becomes(-1L, "the subscription in the east", () -> east.backlog(topic, "s"));
        Consumer<byte[]> forcing = Moves.replicated(east.client(), topic).subscriptionName("forced").subscribe();
        becomes(0L, "the other subscription in the west", () -> west.backlog(topic, "forced"));
        forcing.unsubscribe(true);
        becomes(-1L, "the other subscription in the west", () -> west.backlog(topic, "forced"));
    }

    /** R17: every region has the same flag. Once it is on again, what each acknowledged meanwhile counts in all. */
    void replicatedStatus() throws Exception {
        String topic = Moves.TOPICS + "flagged";
        publish(east.client(), topic, 0, 10);
        Moves.replicated(east.client(), topic).subscribe().close();
        becomes(10L, "what the west is owed", () -> west.backlog(topic, "s"));
        east.admin().topics().setReplicatedSubscriptionStatus(topic, "s", false);
        becomes(false, "the flag in the west", () -> flag(west, topic));
        west.admin().topics().skipMessages(topic, "s", 4);
        equal(east.backlog(topic, "s"), 10L);
        west.admin().topics().setReplicatedSubscriptionStatus(topic, "s", true);
        becomes(true, "the flag in the east", () -> flag(east, topic));
        owedEverywhere(topic, 6);
    }

    private static boolean flag(Region region, String topic) throws Exception {
        return region.admin().topics().getReplicatedSubscriptionStatus(topic, "s").get(topic);
    }

    /** R15: consumers in both regions share a topic while it grows; each message comes in one region, or in both. */
    void growth() throws Exception {
        String topic = Moves.TOPICS + "growing";
        east.admin().topics().createPartitionedTopic(topic, 2);
        Set<Integer> seen = ConcurrentHashMap.newKeySet();
        Set<Integer> used = new HashSet<>();
        becomes(2, "the partitions in the west", () -> partitions(west, topic));
        Consumer<byte[]> here = growing(east, topic, seen);
        Consumer<byte[]> there = growing(west, topic, seen);
        int sent = 0;
        try (Producer<byte[]> producer = east.client().newProducer().topic(topic).enableBatching(false)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create()) {
            east.admin().topics().updatePartitionedTopic(topic, 4);
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
            while (used.size() < 4 && System.nanoTime() < until) {
                MessageId id = producer.send(Integer.toString(sent++).getBytes());
                used.add(((MessageIdImpl) id).getPartitionIndex());
                Thread.sleep(5);
            }
            equal(used.size(), 4);
            west.admin().topics().updatePartitionedTopic(topic, 5);
            becomes(5, "the partitions in the east", () -> partitions(east, topic));
            try (Producer<byte[]> other = west.client().newProducer().topic(topic).enableBatching(false)
                    .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create()) {
                for (int last = sent + 20; sent < last; sent++) {
                    other.send(Integer.toString(sent).getBytes());
                }
            }
        }
        int all = sent;
        becomes(all, "the messages that came", seen::size);
        equal(seen.containsAll(IntStream.range(0, all).boxed().toList()), true);
        for (Region region : List.of(east, west)) {
            for (int index = 0; index < 5; index++) {
                String partition = topic + "-partition-" + index;
                becomes(0L, "what " + region.name() + " is owed of " + partition, () -> region.backlog(partition, "s"));
            }
        }
        here.close();
        there.close();
    }

    /** The number of partitions there; 0 while the topic does not exist. */
    private static int partitions(Region region, String topic) throws Exception {
        try {
            return region.admin().topics().getPartitionedTopicMetadata(topic).partitions;
        } catch (PulsarAdminException.NotFoundException absent) {
            return 0;
        }
    }

    private static Consumer<byte[]> growing(Region region, String topic, Set<Integer> seen) throws Exception {
        return Moves.replicated(region.client(), topic).subscriptionType(SubscriptionType.Shared)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                .messageListener((Consumer<byte[]> consumer, Message<byte[]> message) -> {
                    seen.add(number(message));
                    consumer.acknowledgeAsync(message);
                }).subscribe();
    }
}
